//! `nacre bench mds-survey`: runs [`bench::survey`] on a temporary store, on disk or in memory.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use bench::survey::{self, Options, Test};
use bench::{Figure, MddSubject, Subject, TaskProgress};
use osd::{LocalStores, MemoryStores, Stores};

use super::load;
use super::{ScratchDir, stop_flag};
use crate::cli::MdsSurvey;
use crate::output::outln;

/// Capacity of a store in memory, in bytes.
const MEMORY_MAX: u64 = 64 << 30;

/// Runs the command.
pub(super) fn run(args: &MdsSurvey) -> Result<ExitCode> {
    let options = Options {
        threads_low: args.thrlo as usize,
        threads_high: args.thrhi as usize,
        dir_count: args.dir_count.unwrap_or(args.thrlo as usize),
        file_count: args.file_count,
        stripe_count: args.stripe_count,
        tests: Test::parse(&args.tests_str)?,
        start_number: args.start_number,
    };
    let scratch = args.dir.as_ref().map(ScratchDir::new).transpose()?;
    let stores: Box<dyn Stores> = match &scratch {
        Some(scratch) => Box::new(LocalStores::in_dir(scratch.dir.clone())),
        None => Box::new(MemoryStores(MEMORY_MAX)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let progress = Arc::new(TaskProgress {
        stop: stop_flag()?,
        ..TaskProgress::default()
    });
    let subject = MddSubject::open("mdt", &*stores, runtime.handle().clone())?;
    let subject: Arc<dyn Subject> = Arc::new(subject);
    if !args.json {
        let store_name = scratch
            .as_ref()
            .map_or("memory".to_owned(), |s| s.dir.display().to_string());
        outln!("{} nacre bench mds-survey, store: {store_name}", load::now());
    }
    let mut all_lines = Vec::new();
    let outcome = load::with_progress(&progress, || {
        survey::survey(&options, &subject, &progress, |text, lines| {
            if !args.json {
                outln!("{text}");
            }
            all_lines.extend_from_slice(lines);
        })
    });
    drop(subject);
    runtime.shutdown_background();
    let figures: Vec<Figure> = all_lines.iter().map(|line| line.figure.clone()).collect();
    let output_options = load::OutputOptions {
        csv: args.csv.as_deref(),
        json: args.json,
        windows: 0,
    };
    load::print_results(&output_options, &figures, || {
        format!("\n{}", survey::details(&all_lines))
    })?;
    load::exit_code(outcome)
}
