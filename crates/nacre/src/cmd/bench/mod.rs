//! `nacre bench`: what measures and what tries, a module for each; here is what they share.

mod compare;
mod fsx;
mod library;
mod lnet;
mod load;
mod mdsrate;
mod mdtest;
mod survey;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Bench, Exercise};

/// The exit status of what was interrupted.
const INTERRUPTED: u8 = 130;

/// Runs the command.
pub(crate) fn run(args: Bench) -> Result<ExitCode> {
    match &args.exercise {
        None => compare::run(&args),
        Some(Exercise::Fsx(fsx)) => fsx::run(fsx),
        Some(Exercise::Lnet(args)) => lnet::run(args),
        Some(Exercise::Mdtest(mdtest)) => mdtest::run(mdtest),
        Some(Exercise::Mdsrate(mdsrate)) => mdsrate::run(mdsrate),
        Some(Exercise::MdsSurvey(survey)) => survey::run(survey),
    }
}

/// Becomes true with the first Ctrl-C or SIGTERM, so that the work stops in order; the second ends the process.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let (mut interrupt, mut terminate) = {
        let _in = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut next = || {
                runtime.block_on(async {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                });
            };
            next();
            told.store(true, Ordering::Relaxed);
            next();
            std::process::exit(INTERRUPTED.into());
        })
        .context("cannot start a thread")?;
    Ok(stop)
}

/// A directory that is removed again, whatever happens.
struct Workplace {
    /// Where.
    dir: PathBuf,
}

impl Workplace {
    /// A new one in a directory that is there.
    fn new(base: impl AsRef<Path>) -> Result<Workplace> {
        let base = crate::daemon::absolute(base.as_ref())?;
        if !base.is_dir() {
            bail!(
                "{} is not a directory: say where to measure with --dir",
                base.display()
            );
        }
        let dir = base.join(format!("nacre-bench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Workplace { dir })
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("cannot remove {}: {e}", self.dir.display());
        }
    }
}
