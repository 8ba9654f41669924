//! The `nacre` command: a parallel file system in one binary.
//!
//! Each command is a module below [`cmd`]. The commands share the other modules, for example the
//! record of a running process ([`process`]), the control socket ([`control`]), and starting in the
//! background ([`daemon`]). A command that fails prints one message: the operation, the object, the
//! reason and, where possible, a remedy.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod activity;
mod cli;
mod clock;
mod cmd;
mod control;
mod daemon;
mod fd_limit;
mod instance;
mod interrupt;
mod known_params;
mod lifecycle;
mod logging;
mod metrics;
mod mount_options;
mod mounts;
mod net;
mod node_requests;
mod output;
mod process;
mod process_node;
mod process_params;
mod progress;
mod publish;
mod service_manager;
mod standby;
mod start;
#[cfg(test)]
mod test_params;
mod token;

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// jemalloc returns freed memory to the system within a second (`.cargo/config.toml`,
/// docs/decisions/003-allocator.md). A process has buffers of megabytes beside many small records;
/// for these, glibc kept three times as much memory as was in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse_args(std::env::args_os());
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) => {
            daemon::report_failed(&error);
            output::errln!("nacre: {}", output::describe(&error));
            ExitCode::FAILURE
        }
    }
}
