//! `nacre bench`: runs the same load on the bare disk, on a pass-through FUSE file system over it
//! (bindfs, if installed), on a mount, and through the client library. Also measures the start time
//! and idle memory of `nacre up`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::{Config, LibrarySubject, PASS_THROUGH, PathSubject, Phase, Report, Subject, compare};
use fuse::FuseError;

use super::bench_instance::BenchInstance;
use super::{ScratchDir, caches, load, stop_flag};
use crate::cli::Bench;
use crate::output::{errln, outln};
use crate::progress::ProgressLine;

/// Time limit for bindfs to mount.
const BINDFS_MOUNT_MAX: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn run(args: &Bench) -> Result<ExitCode> {
    let dir = args
        .dir
        .as_deref()
        .context("--dir is required: the directory to measure in")?;
    let scratch = ScratchDir::new(dir)?;
    let result = measure(args, &scratch.dir);
    drop(scratch);
    result
}

fn measure(args: &Bench, dir: &Path) -> Result<ExitCode> {
    let stop = stop_flag()?;
    let instance_dir = dir.join("nacre");
    let instance = BenchInstance::up(&instance_dir, args.osts)?;
    if !args.json {
        let memory = bench::resident_bytes(instance.pid).unwrap_or(0) >> 20;
        outln!(
            "nacre up, until mounted: {} ms; memory when idle: {memory} MiB\n",
            instance.up_duration.as_millis()
        );
    }
    let disk = dir.join("disk");
    fs::create_dir(&disk)?;
    let mut subjects: Vec<Arc<dyn Subject>> = vec![Arc::new(PathSubject {
        name: "disk".to_owned(),
        root: disk,
        processes: Vec::new(),
        drop_caches: None,
    })];
    let bindfs = Bindfs::mount(dir)?;
    match &bindfs {
        Ok(bindfs) => subjects.push(Arc::new(PathSubject {
            name: PASS_THROUGH.to_owned(),
            root: bindfs.mountpoint.clone(),
            processes: vec![bindfs.child.id()],
            drop_caches: Some(caches::of_files(bindfs.source.clone())),
        })),
        Err(why) => errln!("{why}: skipping the pass-through file system"),
    }
    subjects.push(Arc::new(PathSubject {
        name: "nacre mount".to_owned(),
        root: instance.mount.clone(),
        processes: vec![instance.pid],
        drop_caches: Some(caches::of_mount(&instance, &instance_dir)),
    }));
    let library = instance.library()?;
    for client in &library.clients {
        subjects.push(Arc::new(
            LibrarySubject::new("nacre library", client.clone(), library.runtime.clone())
                .with_processes(vec![instance.pid])
                .with_drop_caches(caches::of_library(library.params(), &instance_dir)),
        ));
    }
    let config = Config {
        tasks: args.tasks.iter().map(|n| *n as usize).collect(),
        shared: args.shared,
        only: match args.only.is_empty() {
            true => Phase::ALL.to_vec(),
            false => args.only.clone(),
        },
        files_per_task: args.files as usize,
        stream_bytes: args.megabytes << 20,
        runs: args.runs as usize,
    };
    let mut progress = ProgressLine::new();
    let (report, outcome) = compare(&subjects, &config, &stop, |text, done, total| {
        progress.show(text, done as u64, Some(total as u64));
    });
    drop(progress);
    print_report(args, &report)?;
    drop(subjects);
    library.umount();
    load::exit_code(outcome)
}

fn print_report(args: &Bench, report: &Report) -> Result<()> {
    if let Some(path) = &args.csv {
        fs::write(path, report.csv()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report.summaries())?);
    } else {
        outln!("{report}");
    }
    Ok(())
}

/// A pass-through FUSE file system over a directory of the same disk; unmounted on drop.
struct Bindfs {
    /// The directory below.
    source: PathBuf,
    mountpoint: PathBuf,
    child: Child,
}

impl Bindfs {
    /// Mounts bindfs. The inner error says why bindfs does not mount; usually it is not installed.
    fn mount(dir: &Path) -> Result<Result<Bindfs, String>> {
        let (source, mountpoint) = (dir.join("below"), dir.join("bindfs"));
        fs::create_dir(&source)?;
        fs::create_dir(&mountpoint)?;
        let spawned = Command::new(PASS_THROUGH)
            // For other users, bindfs needs `user_allow_other` in /etc/fuse.conf.
            .args(["-f", "--no-allow-other"])
            .arg(&source)
            .arg(&mountpoint)
            .stdout(Stdio::null())
            .spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(e) => return Ok(Err(format!("cannot start {PASS_THROUGH} (is it installed? {e})"))),
        };
        let mut bindfs = Bindfs {
            source,
            mountpoint,
            child,
        };
        let start_time = Instant::now();
        while fuse::mounted_at(&bindfs.mountpoint).is_none() {
            if let Some(status) = bindfs.child.try_wait()? {
                return Ok(Err(format!("{PASS_THROUGH} did not mount ({status})")));
            }
            if start_time.elapsed() > BINDFS_MOUNT_MAX {
                super::stop_child(&mut bindfs.child);
                return Ok(Err(format!(
                    "{PASS_THROUGH} did not mount within {} s",
                    BINDFS_MOUNT_MAX.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Ok(bindfs))
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        match fuse::unmount(&self.mountpoint, true) {
            Ok(()) | Err(FuseError::NotMounted { .. }) => {}
            Err(e) => errln!("{e}"),
        }
        // bindfs exits after the unmount.
        let _ = self.child.wait();
    }
}
