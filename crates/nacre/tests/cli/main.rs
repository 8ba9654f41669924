//! The command line: what each command does, prints and refuses.

mod bench;
mod commands;
mod errors;
#[path = "../fixture/mod.rs"]
mod fixture;
mod fsck;
mod namespaces;
mod ordinary_user;
mod permissions;
mod processes;
