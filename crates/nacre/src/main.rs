//! The `nacre` command: a parallel file system in one binary.
//!
//! Every command is a module below [`cmd`]; what they share is beside it: the record of a running process
//! ([`running`]), the socket by which commands talk to it ([`control`]), going to the background ([`daemon`]).
//! An error ends the command with one message that says what failed, where, and what to do.

mod answers;
mod cli;
mod cmd;
mod control;
mod daemon;
mod decode;
mod files;
mod instance;
mod joining;
mod logging;
mod mount_options;
mod mounts;
mod net;
mod node;
mod output;
mod own_config;
mod own_params;
mod publish;
mod replace;
mod running;
mod session;
mod start;
mod token;

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

/// What is freed goes back to the system within a second (`.cargo/config.toml`, docs/decisions/003-allocator.md): a process keeps
/// buffers of megabytes beside many small records, and glibc's arenas kept three times what was in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_from(cli::with_mount_word(std::env::args_os()));
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nacre: {}", output::describe(&error));
            ExitCode::FAILURE
        }
    }
}
