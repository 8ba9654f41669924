//! Mounts: each a client on a network of its own, with its runtime; and the numbers that C knows them by.
//!
//! A number is given once. So a mount that is gone is not taken for a later one, and its number is `EBADF`.

use crate::border::Fs;
use crate::options::Options;
use crate::table::Table;
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

/// Says in the environment what is to be logged on standard error, as `RUST_LOG` does for others.
const LOG: &str = "NACRE_LOG";
/// How long the threads of a mount that is gone may take to end.
const END: Duration = Duration::from_secs(5);
/// The permissions of a umask.
const PERMISSIONS: u32 = 0o777;

static MOUNTS: RwLock<BTreeMap<usize, Arc<Mount>>> = RwLock::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A mounted file system.
pub(crate) struct Mount {
    pub(crate) client: Arc<Client>,
    pub(crate) open: Table,
    /// Its number, which programs see as the device of its files.
    pub(crate) number: usize,
    /// Who works with it.
    pub(crate) cred: Cred,
    umask: AtomicU32,
    /// The process that made it: a child has none of its threads.
    pid: u32,
    calls: Handle,
    below: Mutex<Option<Below>>,
}

/// What a mount stands on.
struct Below {
    rpc: Arc<Ptlrpc>,
    lnet: Arc<Lnet>,
    runtime: Runtime,
}

/// Why a file system was not mounted, in words and as a number.
pub(crate) struct NotMounted {
    pub(crate) why: String,
    pub(crate) errno: Errno,
}

impl NotMounted {
    pub(crate) fn new(errno: Errno, why: impl ToString) -> NotMounted {
        let why = why.to_string();
        NotMounted { why, errno }
    }
}

impl From<LnetError> for NotMounted {
    fn from(e: LnetError) -> NotMounted {
        NotMounted::new(e.errno(), e)
    }
}

impl From<client::ClientError> for NotMounted {
    fn from(e: client::ClientError) -> NotMounted {
        NotMounted::new(e.errno(), e)
    }
}

impl From<std::io::Error> for NotMounted {
    fn from(e: std::io::Error) -> NotMounted {
        NotMounted::new(Errno::from(&e), e)
    }
}

/// Mounts a file system.
pub(crate) fn mount(source: &[u8], options: &[u8]) -> Result<Fs, NotMounted> {
    log_if_wanted();
    let text = |bytes| std::str::from_utf8(bytes).map_err(|e| NotMounted::new(Errno::EINVAL, e));
    let source = client::parse_source(text(source)?)?;
    let options = Options::parse(text(options)?).map_err(|e| NotMounted::new(Errno::EINVAL, e))?;
    let cred = Cred::of_this_process()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(options.threads)
        .thread_name("nacre")
        .enable_all()
        .on_thread_start(leave_signals)
        .build()?;
    let started = runtime.block_on(start(&source, &options, &cred));
    let (lnet, rpc, client) = match started {
        Ok(started) => started,
        Err(e) => {
            runtime.shutdown_timeout(END);
            return Err(e);
        }
    };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mount = Arc::new(Mount {
        client,
        open: Table::default(),
        number,
        umask: AtomicU32::new(cred.umask),
        pid: cred.pid,
        cred,
        calls: runtime.handle().clone(),
        below: Mutex::new(Some(Below { rpc, lnet, runtime })),
    });
    MOUNTS.write().insert(number, mount);
    Ok(Fs::of(number))
}

/// Joins the network and mounts.
async fn start(
    source: &Source,
    options: &Options,
    cred: &Cred,
) -> Result<(Arc<Lnet>, Arc<Ptlrpc>, Arc<Client>), NotMounted> {
    let cpts = CptTable::single_current();
    let (cfg, wish) = (LnetConfig::default(), options.wish);
    let choose = || {
        wish.for_client(&cfg, &source.mgs).map_err(|e| match e {
            LnetError::AddrInUse { .. } => NotMounted::new(
                Errno::EADDRINUSE,
                format!("{e}: each process needs an address of its own (option listen=NID)"),
            ),
            e => e.into(),
        })
    };
    let (_, lnet) = Lnet::start(&cpts, &cfg, wish.listen.is_none(), choose).await?;
    let seed = || RandomState::new().hash_one(std::process::id());
    let config = RpcConfig {
        seed: seed(),
        ..RpcConfig::default()
    };
    let rpc = Ptlrpc::start(lnet.clone(), cpts, config);
    let how = MountOptions {
        atime: options.atime,
        diratime: options.diratime,
        subdir: source.subdir.clone(),
        mounter: cred.clone(),
        ..MountOptions::new(source.mgs.clone(), &source.fsname, seed())
    };
    match Client::mount(&rpc, how).await {
        Ok(client) => Ok((lnet, rpc, client)),
        Err(e) => {
            rpc.shutdown().await;
            lnet.shutdown().await;
            Err(e.into())
        }
    }
}

/// Writes back, closes what is open, and unmounts. The first error of a close is told; the mount is gone all the same.
pub(crate) fn umount(fs: &Fs) -> Result<(), Errno> {
    // A child of the mount's process has no threads that could do anything.
    let mount = find(fs)?;
    if MOUNTS.write().remove(&mount.number).is_none() {
        return Err(Errno::EBADF);
    }
    let Some(below) = mount.below.lock().take() else {
        return Err(Errno::EBADF);
    };
    let closed = below.runtime.block_on(async {
        let mut closed = Ok(());
        for open in mount.open.drain() {
            closed = closed.and(open.close(&mount).await);
        }
        mount.client.umount().await;
        below.rpc.shutdown().await;
        below.lnet.shutdown().await;
        closed
    });
    below.runtime.shutdown_timeout(END);
    closed
}

fn find(fs: &Fs) -> Result<Arc<Mount>, Errno> {
    let number = fs.number()?;
    let mount = MOUNTS.read().get(&number).cloned().ok_or(Errno::EBADF)?;
    if mount.pid == std::process::id() {
        Ok(mount)
    } else {
        Err(Errno::ENOTCONN)
    }
}

/// Runs a call on a mount.
pub(crate) fn on<T>(fs: &Fs, call: impl AsyncFnOnce(&Mount) -> Result<T, Errno>) -> Result<T, Errno> {
    let mount = find(fs)?;
    mount.calls.block_on(call(&mount))
}

impl Mount {
    /// Who makes something: permissions that it is not to have go with them.
    pub(crate) fn maker(&self) -> Cred {
        Cred {
            umask: self.umask.load(Ordering::Relaxed),
            ..self.cred.clone()
        }
    }

    /// Sets the permissions that new files do not get; tells the former ones.
    pub(crate) fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & PERMISSIONS, Ordering::Relaxed)
    }
}

/// The program's signals are for its own threads. (And a connection that breaks is an error here, not a `SIGPIPE`.)
fn leave_signals() {
    // What cannot be blocked is none of the program's to catch either.
    let _ = SigSet::all().thread_block();
}

/// Logs on standard error what the environment asks for.
fn log_if_wanted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env(LOG) {
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            // A program in Rust may have one of its own.
            let _ = log.with_writer(std::io::stderr).try_init();
        }
    });
}
