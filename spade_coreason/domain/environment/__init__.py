"""The machine: private files, proxies, the installation and the logs of libraries."""
