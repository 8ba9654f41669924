//! The command line: behaviour, output and errors of each command.

mod bench;
mod commands;
mod components;
mod damaged_index;
mod dirstripe;
mod errors;
#[path = "../fixture/mod.rs"]
mod fixture;
mod fsck;
mod health;
mod lfs;
mod logs;
mod long_commands;
mod lustre_names;
mod metrics;
mod namespaces;
mod ordinary_user;
mod permissions;
mod processes;
mod service_manager;
mod top;
