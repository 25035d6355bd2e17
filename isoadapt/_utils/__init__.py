"""What has nothing to do with isotropy: files, devices, threads, optional dependencies."""
