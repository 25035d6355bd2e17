"""Grid search over adapters: AdapterSearchCV and its parts."""
