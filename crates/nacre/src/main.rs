//! The `nacre` command.

mod decode;

use clap::{Parser, Subcommand};

/// A parallel file system in user space that speaks Lustre's network protocol.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a capture of Lustre's traffic as an engineer wants to read it
    Decode(decode::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Decode(args) => decode::run(&args),
    }
}
