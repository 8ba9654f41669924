//! `nacre bench`: the same load on the bare disk, a pass-through FUSE file system over it (bindfs, when installed), a
//! mount of a file system on it, and the client library, in turn; and how long `up` takes and how much memory it needs.
//! `nacre bench fsx` tries instead whether a file is what it must be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::{BenchError, Config, LibrarySubject, PathSubject, Report, Subject, compare};
use client::{Client, MountOptions};
use cpt::{CptConfig, CptTable};
use lnet::{Lnet, LnetConfig};
use rpc::{Ptlrpc, RpcConfig};
use tokio::runtime::Handle;

use crate::cli::{Bench, Exercise, Fsx, Net};
use crate::node::random;
use crate::output::say;
use crate::{net, running};

/// How long bindfs may take to mount.
const BINDFS_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) fn run(args: Bench) -> Result<ExitCode> {
    if let Some(Exercise::Fsx(fsx)) = &args.exercise {
        return exercise(fsx);
    }
    let dir = args.dir.as_deref().context("--dir says where to measure")?;
    let base = crate::daemon::absolute(dir)?;
    if !base.is_dir() {
        bail!(
            "{} is not a directory: say where to measure with --dir",
            base.display()
        );
    }
    let dir = base.join(format!("nacre-bench-{}", std::process::id()));
    fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let place = Workplace { dir: dir.clone() };
    let ended = measure(&args, &dir);
    drop(place);
    ended
}

/// Random operations on one file through all the mounts that its paths lead to.
fn exercise(args: &Fsx) -> Result<ExitCode> {
    let config = bench::fsx::Config {
        seed: args.seed,
        operations: args.ops,
        direct: args.direct,
        mapped: args.mmap,
        size_max: args.size << 10,
        ..bench::fsx::Config::default()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.spawn(stop_on_interrupt(stop.clone()));
    let ended = bench::fsx::fsx(&args.paths, config, &stop, |done| {
        eprintln!("{done} of {} operations", args.ops);
    });
    runtime.shutdown_background();
    match ended {
        Err(e @ BenchError::Interrupted) => {
            eprintln!("{e}");
            Ok(ExitCode::from(130))
        }
        Err(e) => Err(e.into()),
        Ok(None) => {
            say!("{} operations, seed {}: all as it must be", args.ops, args.seed);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(failure)) => {
            eprintln!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What is removed again, whatever happens.
struct Workplace {
    dir: PathBuf,
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("cannot remove {}: {e}", self.dir.display());
        }
    }
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
    let library = Library::mount(&instance)?;
    subjects.push(Arc::new(
        LibrarySubject::new("nacre library", library.client.clone(), library.runtime.clone())
            .with_processes(vec![instance.pid]),
    ));
    let stop = Arc::new(AtomicBool::new(false));
    library.runtime.spawn(stop_on_interrupt(stop.clone()));
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
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e @ BenchError::Interrupted) => {
            eprintln!("{e}; what was measured so far is reported");
            Ok(ExitCode::from(130))
        }
        Err(e) => Err(e.into()),
    }
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

async fn stop_on_interrupt(stop: Arc<AtomicBool>) {
    if tokio::signal::ctrl_c().await.is_ok() {
        stop.store(true, Ordering::Relaxed);
    }
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

/// A mount without a kernel, in this process.
struct Library {
    client: Arc<Client>,
    runtime: Handle,
    rpc: Arc<Ptlrpc>,
    lnet: Arc<Lnet>,
    cpts: Arc<CptTable>,
}

impl Library {
    fn mount(instance: &Instance) -> Result<Library> {
        let mgs: Vec<wire::Nid> = instance
            .record
            .nids
            .iter()
            .map(|n| n.parse().context("the NID of the file system"))
            .collect::<Result<_>>()?;
        let target = instance
            .record
            .targets
            .iter()
            .find_map(|t| t.split_once("-MDT"))
            .context("there is no MDT")?;
        let fsname = target.0.to_owned();
        let place = net::for_client(
            &Net {
                listen: None,
                port: Some(instance.record.port),
            },
            &mgs,
        )?;
        let cpts = CptTable::build(&CptConfig::default())?;
        let runtime = cpts
            .iter()
            .next()
            .context("there is no CPU partition")?
            .handle()
            .clone();
        let (lnet, rpc, client) = runtime.block_on(async {
            let config = LnetConfig {
                accept_port: place.port,
                ..LnetConfig::default()
            };
            let lnet = Lnet::new(cpts.clone(), config);
            lnet.add_tcp(place.nid, place.listen)
                .await
                .context("the network")?;
            let config = RpcConfig {
                seed: random()?,
                ..RpcConfig::default()
            };
            let rpc = Ptlrpc::start(lnet.clone(), cpts.clone(), config);
            let client = Client::mount(&rpc, MountOptions::new(mgs, fsname, random()?)).await?;
            anyhow::Ok((lnet, rpc, client))
        })?;
        Ok(Library {
            client,
            runtime,
            rpc,
            lnet,
            cpts,
        })
    }

    fn umount(self) {
        self.runtime.block_on(async {
            self.client.umount().await;
            self.rpc.shutdown().await;
            self.lnet.shutdown().await;
        });
        self.cpts.shutdown();
    }
}
