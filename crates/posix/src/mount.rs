//! Mounts. Each has its own client, network and runtime.

use crate::options::Options;
use client::{Caller, Client, Cred, JobIds, MountOptions, Source};
use cpt::CptTable;
use lnet::{Lnet, LnetConfig, LnetError};
use nix::sys::signal::SigSet;
use node::{Node, NodeConfig, NodeError, RandomSource};
use parking_lot::Mutex;
use rpc::Import;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use wire::Errno;

/// The environment variable with the log filter for standard error, in the syntax of `RUST_LOG`.
const LOG_VARIABLE: &str = "NACRE_LOG";
/// The longest time that an unmount waits for the end of the mount's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the checks for interruptions of a wait.
const INTERRUPTION_POLL: Duration = Duration::from_millis(100);
/// The permission bits of a umask.
const PERMISSIONS: u32 = 0o777;

/// A mounted file system.
pub struct Mount {
    /// The client.
    pub client: Arc<Client>,
    /// The credentials of all calls; [`Mount::create_cred`] has the current umask.
    pub cred: Cred,
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
    node: Arc<Node>,
    runtime: Runtime,
}

/// The error of a failed mount: a message and an errno.
pub struct MountError {
    /// The reason.
    pub message: String,
    /// The class of the error.
    pub errno: Errno,
}

impl MountError {
    /// An error with this message.
    pub fn new(errno: Errno, message: impl ToString) -> MountError {
        let message = message.to_string();
        MountError { message, errno }
    }
}

impl From<LnetError> for MountError {
    fn from(e: LnetError) -> MountError {
        MountError::new(e.errno(), e)
    }
}

impl From<NodeError> for MountError {
    fn from(e: NodeError) -> MountError {
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

/// Parses the options `jobid_var` and `jobid_name`.
fn jobs(options: &Options) -> Result<Arc<JobIds>, String> {
    let jobs = Arc::<JobIds>::default();
    if let Some(name) = &options.jobid_name {
        jobs.set_name(name)
            .map_err(|reason| format!("jobid_name: {reason}"))?;
    }
    if let Some(var) = &options.jobid_var {
        jobs.set_var(var)
            .map_err(|reason| format!("jobid_var: {reason}"))?;
    }
    Ok(jobs)
}

/// Starts LNet at the client's address, and the node.
async fn start_node(source: &Source, options: &Options) -> Result<Arc<Node>, MountError> {
    let jobs = jobs(options).map_err(|e| MountError::new(Errno::EINVAL, e))?;
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
    let config = NodeConfig {
        jobs,
        follow_mgs_params: false,
        ..NodeConfig::new(RandomSource::system())
    };
    Ok(Node::start(lnet, config)?)
}

/// Mounts the file system on the node.
async fn mount(
    node: &Node,
    source: &Source,
    options: &Options,
    cred: &Cred,
) -> Result<Arc<Client>, MountError> {
    let mount_options = MountOptions {
        atime: options.atime,
        diratime: options.diratime,
        subdir: source.subdir.clone(),
        mounter: cred.clone(),
        ..node.mount_options(source.mgs.clone(), &source.fsname)?
    };
    Ok(node.mount(mount_options).await?)
}

/// Stops the node.
async fn stop(node: &Node) {
    // Only an MGS can fail to stop, and this node has none.
    let _ = node.stop().await;
}

/// Runs `work` on the caller's thread. Calls `is_interrupted` every 100 ms, outside of the runtime,
/// so that the function may run any code, even calls on a mount. `None`: `is_interrupted` returned
/// true; the caller may continue `work`.
pub fn block_on_until_interrupted<F: Future + Unpin>(
    runtime: &Handle,
    work: &mut F,
    mut is_interrupted: impl FnMut() -> bool,
) -> Option<F::Output> {
    loop {
        let output = runtime.block_on(async {
            tokio::select! {
                biased;
                output = &mut *work => Some(output),
                () = tokio::time::sleep(INTERRUPTION_POLL) => None,
            }
        });
        if output.is_some() || is_interrupted() {
            return output;
        }
    }
}

impl Mount {
    /// Mounts a file system. `source` is `MGSNID[,MGSNID...]:/FSNAME[/DIRECTORY]`, `options` as in
    /// [`Options::parse`]. Blocks the caller's thread, so the caller must not be in an
    /// async context.
    ///
    /// # Errors
    ///
    /// A message with the reason, and an errno.
    pub fn start(source: &[u8], options: &[u8]) -> Result<Mount, MountError> {
        Mount::start_interruptible(source, options, || false)
    }

    /// Like [`Mount::start`], but gives up when `is_interrupted` returns true
    /// ([`block_on_until_interrupted`]).
    ///
    /// # Errors
    ///
    /// As [`Mount::start`]; `EINTR` after an interruption.
    pub fn start_interruptible(
        source: &[u8],
        options: &[u8],
        is_interrupted: impl FnMut() -> bool,
    ) -> Result<Mount, MountError> {
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
        let node = match runtime.block_on(start_node(&source, &options)) {
            Ok(node) => node,
            Err(e) => {
                runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
                return Err(e);
            }
        };
        let mut mounting = Box::pin(mount(&node, &source, &options, &cred));
        let mounted = block_on_until_interrupted(runtime.handle(), &mut mounting, is_interrupted);
        drop(mounting);
        let interrupted = || Err(MountError::new(Errno::EINTR, "the mount was interrupted"));
        let client = match mounted.unwrap_or_else(interrupted) {
            Ok(client) => client,
            Err(e) => {
                runtime.block_on(stop(&node));
                runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
                return Err(e);
            }
        };
        Ok(Mount {
            client,
            umask: AtomicU32::new(cred.umask),
            pid: cred.pid,
            cred,
            runtime: runtime.handle().clone(),
            layers: Mutex::new(Some(Layers { node, runtime })),
        })
    }

    /// Calls `close_files`, then writes cached data back and unmounts, even if `close_files` fails.
    ///
    /// # Errors
    ///
    /// `EBADF`: already unmounted; the error of `close_files`; `EIO`: changes may be lost, because
    /// a server has not committed them within [`client::SAVE_MAX`].
    pub fn unmount(&self, close_files: impl AsyncFnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        self.unmount_interruptible(close_files, || false)
    }

    /// Like [`Mount::unmount`], but stops waiting for the servers when `is_interrupted` returns
    /// true ([`block_on_until_interrupted`]).
    ///
    /// # Errors
    ///
    /// As [`Mount::unmount`]; `EINTR` after an interruption: unwritten data is lost.
    pub fn unmount_interruptible(
        &self,
        close_files: impl AsyncFnOnce() -> Result<(), Errno>,
        is_interrupted: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        let Some(layers) = self.layers.lock().take() else {
            return Err(Errno::EBADF);
        };
        let mut leave_servers = Box::pin(async {
            let result = close_files().await;
            // Unmount before the node stops, which returns no errors of mounts.
            match layers.node.umount(&self.client).await.is_empty() {
                true => result,
                false => result.and(Err(Errno::EIO)),
            }
        });
        let result = block_on_until_interrupted(layers.runtime.handle(), &mut leave_servers, is_interrupted);
        drop(leave_servers);
        layers.runtime.block_on(stop(&layers.node));
        let result = result.unwrap_or(Err(Errno::EINTR));
        layers.runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        result
    }

    /// Runs a call on the caller's thread; returns its result.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn run<T>(&self, call: impl AsyncFnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        self.runtime.block_on(self.run_for_job(call()))
    }

    /// Runs `work` for this process's job: its requests carry the job's name.
    pub fn run_for_job<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let caller = Caller {
            pid: self.pid,
            uid: self.cred.uid,
            gid: self.cred.gid,
        };
        self.client.run_for(Some(caller), work)
    }

    /// The runtime with the mount's threads.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// The servers that have left a request without an answer for `at_least`, each as
    /// `nacre-OST0000 at 10.0.0.2@tcp`.
    pub fn silent_servers(&self, at_least: Duration) -> Vec<String> {
        let imports = self.client.imports().into_iter();
        let silent = imports.filter(|import| {
            let pending = import.pending_requests();
            pending.is_some_and(|pending| pending.since.elapsed() >= at_least)
        });
        let describe = |import: Arc<Import>| {
            let target = import.target_uuid();
            let name = target.strip_suffix("_UUID").unwrap_or(target);
            format!("{name} at {}", import.peer())
        };
        silent.map(describe).collect()
    }

    /// Whether another process mounted: a child process does not have the mount's threads.
    pub fn was_inherited_by_fork(&self) -> bool {
        self.pid != std::process::id()
    }

    /// The credentials for creating files, with the current umask.
    pub fn create_cred(&self) -> Cred {
        Cred {
            umask: self.umask.load(Ordering::Relaxed),
            ..self.cred.clone()
        }
    }

    /// Sets the umask for new files; returns the former umask.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & PERMISSIONS, Ordering::Relaxed)
    }
}

/// Blocks all signals in a thread of the mount: the program's own threads receive them. A write to
/// a broken connection then returns an error, and `SIGPIPE` does not end the program.
fn block_signals() {
    // SIGKILL and SIGSTOP cannot be blocked, but the program cannot catch them either.
    let _ = SigSet::all().thread_block();
}

/// Starts logging to standard error if the environment requests it.
fn init_logging() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env(LOG_VARIABLE) {
            let has_color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let log = tracing_subscriber::fmt()
                .with_env_filter(filter)
                // A report of a failed write goes to standard error, and panics if that fails too.
                .log_internal_errors(false)
                .with_ansi(has_color);
            // A Rust program may have installed a subscriber already.
            let _ = log.with_writer(std::io::stderr).try_init();
        }
    });
}
