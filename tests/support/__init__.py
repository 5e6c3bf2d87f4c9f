"""What tests share: fake stores and machines, processes, models, numbers of references, pytest plugins."""
