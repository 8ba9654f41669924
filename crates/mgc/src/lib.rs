//! What a client or a server learns from the MGS: configuration logs, read and watched; target registration.

mod config;

pub use config::{ConfParam, FsConfig, TargetConf};
