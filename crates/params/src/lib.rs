//! Parameters under Lustre names: one registry, read and set at run time.
