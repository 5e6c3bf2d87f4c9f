"""What tests share: stand-ins of stores and machines, processes, models, numbers of references, pytest plugins."""
