//! `nacre debug`: the insides of a stopped target, for developers and for repairs by hand.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use bytes::Bytes;
use osd::journal::{self, RecordChange};
use osd::target::{TargetDir, TargetKind};
use wire::Errno;

use crate::cli::Debug;
use crate::output::outln;

/// Runs the command.
pub(crate) fn run(command: &Debug) -> Result<ExitCode> {
    match command {
        Debug::Journal { dir } => print_journal(dir),
    }
}

/// Prints the changes in the journals of a target's index.
fn print_journal(dir: &Path) -> Result<ExitCode> {
    // The lock on the directory ensures that no server changes the journals meanwhile.
    let target = TargetDir::open_read_only(dir)?;
    let kind = target.label().kind;
    let mut batch = None;
    journal::for_each_change(dir, |change| {
        if batch.replace(change.sequence) != Some(change.sequence) {
            outln!("batch {}", change.sequence);
        }
        outln!("  {}", describe(kind, change));
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A change as text. The record of an unknown form is shown by its key.
fn describe(kind: TargetKind, change: RecordChange<'_>) -> String {
    let (key, value) = (
        Bytes::copy_from_slice(change.key),
        change.value.map(Bytes::copy_from_slice),
    );
    let of_service = || match kind {
        TargetKind::Mdt => mdt::store::describe(&key, value.as_ref()),
        TargetKind::Mgs | TargetKind::Ost => None,
    };
    osd::describe(&key, value.as_ref())
        .or_else(of_service)
        .unwrap_or_else(|| {
            let size = value
                .as_ref()
                .map(|value| Ok::<_, Errno>(format!("{} bytes", value.len())));
            osd::describe_change(&key.escape_ascii().to_string(), size)
        })
}
