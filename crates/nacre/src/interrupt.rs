//! Ctrl-C and SIGTERM during long commands: the command cleans up before it ends.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::output;

/// Exit status after SIGINT or SIGTERM: 128 + 2, as shells report SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// The exit status after an interruption.
pub(crate) fn exit_code() -> ExitCode {
    ExitCode::from(EXIT_INTERRUPTED)
}

/// The work was interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Fails with [`Interrupted`] if the flag is set.
pub(crate) fn check(stop: &AtomicBool) -> Result<(), Interrupted> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Interrupted),
        false => Ok(()),
    }
}

/// Returns a flag that the first Ctrl-C or SIGTERM sets, or a closed pipe of the output. The caller
/// polls the flag, cleans up and ends. A second signal ends the process at once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let stop = Arc::new(AtomicBool::new(false));
    output::stop_at_closed_pipe(&stop);
    let flag = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut wait_for_signal = || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                });
            };
            wait_for_signal();
            flag.store(true, Ordering::Relaxed);
            wait_for_signal();
            std::process::exit(EXIT_INTERRUPTED.into());
        })
        .context("cannot start the thread for signals")?;
    Ok(stop)
}
