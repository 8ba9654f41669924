//! The management server: configuration logs and target registration.
