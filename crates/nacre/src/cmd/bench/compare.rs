//! The same load on the bare disk, a pass-through FUSE file system over it (bindfs, when installed), a mount of a file
//! system on it, and the client library, in turn; and how long `up` takes and how much memory it needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::{Config, LibrarySubject, PathSubject, Report, Subject, compare};

use super::library::Library;
use super::{Workplace, load, stop_flag};
use crate::cli::{Bench, Net};
use crate::output::say;
use crate::running;

/// How long bindfs may take to mount.
const BINDFS_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn run(args: &Bench) -> Result<ExitCode> {
    let dir = args.dir.as_deref().context("--dir says where to measure")?;
    let place = Workplace::new(dir)?;
    let ended = measure(args, &place.dir);
    drop(place);
    ended
}

fn measure(args: &Bench, dir: &Path) -> Result<ExitCode> {
    let instance = Instance::up(&dir.join("nacre"), args.osts)?;
    if !args.json {
        let memory = running::resident_bytes(instance.pid).unwrap_or(0) >> 20;
        say!(
            "nacre up, until mounted: {} ms; memory when idle: {memory} MiB\n",
            instance.took.as_millis()
        );
    }
    let disk = dir.join("disk");
    fs::create_dir(&disk)?;
    let mut subjects: Vec<Arc<dyn Subject>> = vec![Arc::new(PathSubject {
        name: "disk".to_owned(),
        root: disk,
        processes: Vec::new(),
    })];
    let bindfs = Bindfs::mount(dir)?;
    match &bindfs {
        Some(bindfs) => subjects.push(Arc::new(PathSubject {
            name: "bindfs".to_owned(),
            root: bindfs.at.clone(),
            processes: vec![bindfs.child.id()],
        })),
        None => eprintln!("bindfs is not installed: no pass-through file system to compare with"),
    }
    subjects.push(Arc::new(PathSubject {
        name: "nacre mount".to_owned(),
        root: instance.mount.clone(),
        processes: vec![instance.pid],
    }));
    let library = instance.library()?;
    for client in &library.clients {
        subjects.push(Arc::new(
            LibrarySubject::new("nacre library", client.clone(), library.runtime.clone())
                .with_processes(vec![instance.pid]),
        ));
    }
    let stop = stop_flag()?;
    let config = Config {
        threads: args.threads as usize,
        files_per_thread: args.files as usize,
        stream_bytes: args.megabytes << 20,
        runs: args.runs as usize,
    };
    let (report, ended) = compare(&subjects, config, &stop, |next| eprintln!("{next}"));
    tell(args, &report)?;
    drop(subjects);
    library.umount();
    load::ended(ended)
}

fn tell(args: &Bench, report: &Report) -> Result<()> {
    if let Some(path) = &args.csv {
        fs::write(path, report.csv()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        say!("{}", serde_json::to_string_pretty(&report.summaries())?);
    } else {
        say!("{report}");
    }
    Ok(())
}

/// A file system of its own for the measurement, in a process of its own, as a user has it.
struct Instance {
    dir: PathBuf,
    mount: PathBuf,
    pid: u32,
    took: Duration,
    record: running::Running,
}

impl Instance {
    fn up(dir: &Path, osts: u32) -> Result<Instance> {
        let begun = Instant::now();
        nacre(&["up", "--osts", &osts.to_string()], dir)?;
        let took = begun.elapsed();
        let record = running::in_dir(dir)?.context("the file system is not up")?;
        let mount = record
            .mounts
            .first()
            .context("the file system is not mounted")?
            .mountpoint
            .clone();
        Ok(Instance {
            dir: dir.to_owned(),
            mount,
            pid: record.pid,
            took,
            record,
        })
    }

    /// A client of it in this process.
    fn library(&self) -> Result<Library> {
        let mgs: Vec<wire::Nid> = self
            .record
            .nids
            .iter()
            .map(|n| n.parse().context("the NID of the file system"))
            .collect::<Result<_>>()?;
        let (fsname, _) = self
            .record
            .targets
            .iter()
            .find_map(|t| t.split_once("-MDT"))
            .context("there is no MDT")?;
        let net = Net {
            listen: None,
            port: Some(self.record.port),
        };
        Library::mount(&mgs, fsname, &net, 1)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(e) = nacre(&["down", "--lazy"], &self.dir) {
            eprintln!("{e}");
        }
    }
}

/// Runs a command of this same binary.
fn nacre(args: &[&str], dir: &Path) -> Result<()> {
    let own = std::env::current_exe().context("cannot find the nacre binary")?;
    let out = Command::new(own)
        .args(args)
        .arg("--dir")
        .arg(dir)
        .output()
        .context("cannot run nacre")?;
    if !out.status.success() {
        bail!(
            "nacre {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(())
}

/// A pass-through FUSE file system over a directory of the same disk.
struct Bindfs {
    at: PathBuf,
    child: Child,
}

impl Bindfs {
    /// `None`: there is no bindfs on this machine.
    fn mount(dir: &Path) -> Result<Option<Bindfs>> {
        let (below, at) = (dir.join("below"), dir.join("bindfs"));
        fs::create_dir(&below)?;
        fs::create_dir(&at)?;
        let spawned = Command::new("bindfs")
            .arg("-f")
            .arg(&below)
            .arg(&at)
            .stdout(Stdio::null())
            .spawn();
        let Ok(child) = spawned else { return Ok(None) };
        let bindfs = Bindfs { at, child };
        let begun = Instant::now();
        while fuse::mounted_at(&bindfs.at).is_none() {
            if begun.elapsed() > BINDFS_PATIENCE {
                bail!("bindfs did not mount {}", bindfs.at.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(bindfs))
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        if let Err(e) = fuse::unmount(&self.at, true) {
            eprintln!("{e}");
        }
        // It ends when it is unmounted.
        let _ = self.child.wait();
    }
}
