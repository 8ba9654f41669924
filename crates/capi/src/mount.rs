//! Mounts. Each has its own client, network and runtime, and a number by which C refers to it.
//!
//! Numbers are never reused, so a call with the number of an unmounted file system fails with
//! `EBADF`.

use crate::ffi::Fs;
use crate::options::Options;
use crate::table::OpenTable;
use client::{Client, Cred, MountOptions, Source};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, LnetError};
use nix::sys::signal::SigSet;
use parking_lot::{Mutex, RwLock};
use rpc::{Ptlrpc, RpcConfig};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use wire::Errno;

/// The environment variable with the log filter for standard error, in the syntax of `RUST_LOG`.
const LOG_VARIABLE: &str = "NACRE_LOG";
/// The longest time that an unmount waits for the end of the mount's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The permission bits of a umask.
const PERMISSIONS: u32 = 0o777;

static MOUNTS: RwLock<BTreeMap<usize, Arc<Mount>>> = RwLock::new(BTreeMap::new());
static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(1);

/// A mounted file system.
pub(crate) struct Mount {
    pub(crate) client: Arc<Client>,
    pub(crate) open_files: OpenTable,
    /// The mount's number, shown to programs as `st_dev` of its files.
    pub(crate) number: usize,
    /// The credentials of all calls; [`Mount::create_cred`] has the current umask.
    pub(crate) cred: Cred,
    umask: AtomicU32,
    /// The process that mounted; a child process does not have the mount's threads.
    pid: u32,
    /// The runtime of the mount, which the calls use.
    runtime: Handle,
    /// `None`: the unmount has taken the layers to stop them.
    layers: Mutex<Option<Layers>>,
}

/// The layers below the client.
struct Layers {
    rpc: Arc<Ptlrpc>,
    lnet: Arc<Lnet>,
    runtime: Runtime,
}

/// The error of a failed mount: a message and an errno.
pub(crate) struct MountError {
    pub(crate) message: String,
    pub(crate) errno: Errno,
}

impl MountError {
    pub(crate) fn new(errno: Errno, message: impl ToString) -> MountError {
        let message = message.to_string();
        MountError { message, errno }
    }
}

impl From<LnetError> for MountError {
    fn from(e: LnetError) -> MountError {
        MountError::new(e.errno(), e)
    }
}

impl From<client::ClientError> for MountError {
    fn from(e: client::ClientError) -> MountError {
        MountError::new(e.errno(), e)
    }
}

impl From<std::io::Error> for MountError {
    fn from(e: std::io::Error) -> MountError {
        MountError::new(Errno::from(&e), e)
    }
}

/// Mounts a file system.
pub(crate) fn mount(source: &[u8], options: &[u8]) -> Result<Fs, MountError> {
    init_logging();
    let text = |bytes| std::str::from_utf8(bytes).map_err(|e| MountError::new(Errno::EINVAL, e));
    let source = client::parse_source(text(source)?)?;
    let options = Options::parse(text(options)?).map_err(|e| MountError::new(Errno::EINVAL, e))?;
    let cred = Cred::of_this_process()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(options.threads)
        .thread_name("nacre")
        .enable_all()
        .on_thread_start(block_signals)
        .build()?;
    let result = runtime.block_on(start(&source, &options, &cred));
    let (lnet, rpc, client) = match result {
        Ok(layers) => layers,
        Err(e) => {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
            return Err(e);
        }
    };
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let mount = Arc::new(Mount {
        client,
        open_files: OpenTable::default(),
        number,
        umask: AtomicU32::new(cred.umask),
        pid: cred.pid,
        cred,
        runtime: runtime.handle().clone(),
        layers: Mutex::new(Some(Layers { rpc, lnet, runtime })),
    });
    MOUNTS.write().insert(number, mount);
    Ok(Fs::of(number))
}

/// Starts the network and mounts the file system.
async fn start(
    source: &Source,
    options: &Options,
    cred: &Cred,
) -> Result<(Arc<Lnet>, Arc<Ptlrpc>, Arc<Client>), MountError> {
    let cpts = CptTable::single_current();
    let (cfg, endpoint) = (LnetConfig::default(), options.endpoint);
    let choose_address = || {
        endpoint.for_client(&cfg, &source.mgs).map_err(|e| match e {
            LnetError::AddrInUse { .. } => MountError::new(
                Errno::EADDRINUSE,
                format!("{e}: each process needs an address of its own (option listen=NID)"),
            ),
            e => e.into(),
        })
    };
    let (_, lnet) = Lnet::start(&cpts, &cfg, endpoint.listen.is_none(), choose_address).await?;
    let seed = || RandomState::new().hash_one(std::process::id());
    let config = RpcConfig {
        seed: seed(),
        ..RpcConfig::default()
    };
    let rpc = Ptlrpc::start(lnet.clone(), cpts, config);
    let mount_options = MountOptions {
        atime: options.atime,
        diratime: options.diratime,
        subdir: source.subdir.clone(),
        mounter: cred.clone(),
        ..MountOptions::new(source.mgs.clone(), &source.fsname, seed())
    };
    match Client::mount(&rpc, mount_options).await {
        Ok(client) => Ok((lnet, rpc, client)),
        Err(e) => {
            rpc.shutdown().await;
            lnet.shutdown().await;
            Err(e.into())
        }
    }
}

/// Writes cached data back, closes open files and unmounts. Returns the first error of a close. The
/// file system is unmounted even after an error.
pub(crate) fn umount(fs: &Fs) -> Result<(), Errno> {
    // A child process fails here: it does not have the mount's threads.
    let mount = find(fs)?;
    if MOUNTS.write().remove(&mount.number).is_none() {
        return Err(Errno::EBADF);
    }
    let Some(layers) = mount.layers.lock().take() else {
        return Err(Errno::EBADF);
    };
    let result = layers.runtime.block_on(async {
        let mut result = Ok(());
        for open in mount.open_files.drain() {
            result = result.and(open.close(&mount).await);
        }
        mount.client.umount().await;
        layers.rpc.shutdown().await;
        layers.lnet.shutdown().await;
        result
    });
    layers.runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result
}

/// Finds the mount that C refers to. `EFAULT`: NULL; `EBADF`: not mounted; `ENOTCONN`: a parent
/// process mounted it.
fn find(fs: &Fs) -> Result<Arc<Mount>, Errno> {
    let number = fs.number()?;
    let mount = MOUNTS.read().get(&number).cloned().ok_or(Errno::EBADF)?;
    if mount.pid == std::process::id() {
        Ok(mount)
    } else {
        Err(Errno::ENOTCONN)
    }
}

/// Runs a call on a mount, on the caller's thread; returns its result.
pub(crate) fn run_on<T>(fs: &Fs, call: impl AsyncFnOnce(&Mount) -> Result<T, Errno>) -> Result<T, Errno> {
    let mount = find(fs)?;
    mount.runtime.block_on(call(&mount))
}

impl Mount {
    /// The credentials for creating files, with the current umask.
    pub(crate) fn create_cred(&self) -> Cred {
        Cred {
            umask: self.umask.load(Ordering::Relaxed),
            ..self.cred.clone()
        }
    }

    /// Sets the umask for new files; returns the former umask.
    pub(crate) fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & PERMISSIONS, Ordering::Relaxed)
    }
}

/// Blocks all signals in a thread of the mount: the program's own threads receive them. A write to
/// a broken connection then returns an error instead of raising `SIGPIPE`.
fn block_signals() {
    // SIGKILL and SIGSTOP cannot be blocked, but the program cannot catch them either.
    let _ = SigSet::all().thread_block();
}

/// Starts logging to standard error if the environment requests it.
fn init_logging() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env(LOG_VARIABLE) {
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            // A Rust program may have installed a subscriber already.
            let _ = log.with_writer(std::io::stderr).try_init();
        }
    });
}
