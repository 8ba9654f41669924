//! The life of a process that serves or mounts: started in the foreground or in the background, brought up, published, asked
//! through its control sockets, and stopped in order by a command or a signal.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cpt::{BoxFuture, CptTable};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

use crate::control::{Asker, Handler, Request};
use crate::node::{MountRequest, Node};
use crate::publish::Publisher;
use crate::running::{self, Running};
use crate::start::Start;
use crate::{daemon, files, instance, logging, mounts, output};

/// The role of a process that is there for its mounts: it ends with the last of them.
pub(crate) const MOUNT: &str = "mount";
/// The roles of processes that also mount for others.
pub(crate) const MOUNTING: [&str; 4] = ["up", "serve", "lnet", MOUNT];
/// How often a process looks whether it is still published.
const RESTORE: Duration = Duration::from_secs(1);
/// How long an answer has to leave through the control socket when the process ends.
const LAST_ANSWER: Duration = Duration::from_millis(20);

/// What a process is started for.
pub(crate) struct Session {
    /// `up`, `serve`, `mount`, `lnet`, `lst node` or `lst console`.
    pub(crate) role: &'static str,
    /// Directories that it works for.
    pub(crate) dirs: Vec<PathBuf>,
    /// Where its log goes when it is in the background.
    pub(crate) log: PathBuf,
    /// Whether it stays in the foreground.
    pub(crate) foreground: bool,
    /// What it was told at its start.
    pub(crate) start: Start,
}

/// What is still to be done when a node is brought up and can be found.
pub(crate) struct Then {
    /// The first mount.
    pub(crate) mount: Option<MountRequest>,
    /// Says what there is.
    pub(crate) said: Box<dyn FnOnce() -> String>,
}

impl From<String> for Then {
    fn from(said: String) -> Then {
        Then {
            mount: None,
            said: Box::new(move || said),
        }
    }
}

/// A command that wants the process to stop, and waits for word of it.
struct StopRequest {
    lazy: bool,
    done: oneshot::Sender<Result<()>>,
}

impl Session {
    /// Runs a process to its end, or starts it in the background. `bring_up` builds what it is for and says what is
    /// left to do; when it fails, what it has built is taken down again.
    pub(crate) fn run<F, Fut, T>(self, bring_up: F) -> Result<ExitCode>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(Node, T)>>,
        T: Into<Then>,
    {
        if !self.foreground && !daemon::is_child() {
            return daemon::spawn(&self.log);
        }
        if daemon::is_child() {
            daemon::detach();
        }
        logging::start();
        // Stores, logs and records are for this user alone.
        osd::files::restrict_umask();
        let ended = self.live(bring_up);
        if let Err(e) = &ended {
            tracing::error!("{}", output::describe(e));
            daemon::failed(e);
        }
        ended.map(|()| ExitCode::SUCCESS)
    }

    fn live<F, Fut, T>(&self, bring_up: F) -> Result<()>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(Node, T)>>,
        T: Into<Then>,
    {
        files::raise_limit();
        let cpts = CptTable::build(&self.start.cpt).context("cannot start the CPU partitions")?;
        if cpts.is_forced() {
            tracing::warn!(
                "CPU partitions share CPUs (force_partitions): figures of this process say nothing about partitions"
            );
        }
        let first = cpts
            .iter()
            .next()
            .context("there is no CPU partition")?
            .handle()
            .clone();
        let ended = first.block_on(async {
            // Before anything is there to be left behind.
            let mut signals = Signals::new()?;
            let locks = self
                .dirs
                .iter()
                .map(|d| instance::lock(d))
                .collect::<Result<Vec<_>>>()?;
            // A target may wait for its MGS for long.
            let (node, then) = tokio::select! {
                built = bring_up(cpts.clone()) => built?,
                name = signals.ending() => bail!("stopped by {name} before it was up"),
                () = daemon::parent_has_ended() => bail!("the command that started it has ended before it was up"),
            };
            let mut then: Then = then.into();
            if cpts.is_forced() {
                let (said, n) = (then.said, cpts.len());
                then.said = Box::new(move || {
                    format!(
                        "{}\n  {n} CPU partitions are forced to share CPUs: for tests, not for measuring",
                        said()
                    )
                });
            }
            let ended = self.serve(node, then, signals).await;
            drop(locks);
            ended
        });
        cpts.shutdown();
        ended
    }

    async fn serve(&self, mut node: Node, then: Then, mut signals: Signals) -> Result<()> {
        let known = Publisher::new(&self.dirs, std::process::id());
        let (publisher, record) = match known.and_then(|p| Ok((p, self.record(&node)?))) {
            Ok(known) => known,
            Err(e) => {
                let undone = node.stop().await;
                return undone.and(Err(e));
            }
        };
        let (stop, mut stop_requests) = mpsc::channel(1);
        let session_over = node.session_over();
        let life = Arc::new(Life {
            role: self.role,
            told: self.start.told(),
            record: Mutex::new(record),
            node: Mutex::new(node),
            publisher: Arc::new(Mutex::new(publisher)),
            unmounted: Notify::new(),
            stop,
        });
        if let Err(e) = life.publish(true).await {
            let undone = life.stop().await;
            return undone.and(Err(e));
        }
        let Then { mount, said } = then;
        let mut said = Some(said);
        let maker = life.clone();
        let first = async move {
            match mount {
                Some(request) => maker.mount(&request).await.map(drop),
                None => Ok(()),
            }
        };
        tokio::pin!(first, session_over);
        let mut restore = tokio::time::interval(RESTORE);
        restore.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let request = tokio::select! {
                request = stop_requests.recv() => request,
                signal = signals.next() => match signal {
                    "SIGHUP" => {
                        daemon::reopen_log(&self.log);
                        continue;
                    }
                    name => {
                        tracing::info!("stopped by {name}");
                        None
                    }
                },
                made = &mut first, if said.is_some() => {
                    let ready = said.take().map(|said| said());
                    match (made, ready) {
                        (Ok(()), ready) => daemon::ready(&ready.unwrap_or_default()),
                        // Somebody else has asked this process for a mount meanwhile, and has it.
                        (Err(e), _) if self.role == MOUNT && !life.node.lock().await.close_if_unused() => {
                            tracing::error!("{}", output::describe(&e));
                            daemon::refused(&e);
                        }
                        (Err(e), _) => {
                            let undone = life.stop().await;
                            return undone.and(Err(e));
                        }
                    }
                    continue;
                }
                () = life.unmounted.notified() => {
                    if self.role != MOUNT || !life.node.lock().await.close_if_unused() {
                        continue;
                    }
                    tracing::info!("nothing is mounted any more");
                    None
                }
                () = &mut session_over => {
                    tracing::info!("the session has ended");
                    None
                }
                _ = restore.tick() => {
                    if let Err(e) = life.publish(false).await {
                        tracing::warn!("{e:#}");
                    }
                    continue;
                }
            };
            // A sender of a signal cannot be told that something is in use: then it is detached.
            let lazy = request.as_ref().is_none_or(|r| r.lazy);
            let unmounted = life.node.lock().await.unmount_all(lazy).await;
            match (unmounted, request) {
                (Err(e), Some(request)) if !lazy => {
                    let _ = request.done.send(Err(e));
                    continue;
                }
                (unmounted, request) => {
                    if let Err(e) = unmounted {
                        tracing::warn!("{e:#}");
                    }
                    return life.end(request).await;
                }
            }
        }
    }
}

impl Session {
    /// What the process says about itself.
    fn record(&self, node: &Node) -> Result<Running> {
        let pid = std::process::id();
        Ok(Running {
            role: self.role.to_owned(),
            pid,
            start_ticks: running::start_ticks(pid).context("/proc has nothing of this process")?,
            boot_id: running::boot_id(),
            dirs: self.dirs.clone(),
            control: PathBuf::new(),
            owner: running::uid(),
            nids: node.nids().iter().map(|n| n.to_string()).collect(),
            port: node.port(),
            targets: node.target_names(),
            mounts: node.mount_records(),
            session: node.session_key(),
            log: if daemon::is_child() {
                self.log.clone()
            } else {
                PathBuf::from("standard error")
            },
        })
    }
}

/// Signals that a process handles.
struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
    hup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let on = |kind| signal(kind).context("cannot catch signals");
        Ok(Signals {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
            hup: on(SignalKind::hangup())?,
        })
    }

    /// One that ends the process.
    async fn ending(&mut self) -> &'static str {
        loop {
            match self.next().await {
                "SIGHUP" => {}
                name => return name,
            }
        }
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            _ = self.hup.recv() => "SIGHUP",
        }
    }
}

/// A running process, as its commands and its signals see it.
struct Life {
    role: &'static str,
    /// Start parameters.
    told: Vec<String>,
    /// What was published last. It has a lock of its own: that of the node is held for long while the node stops.
    record: Mutex<Running>,
    node: Mutex<Node>,
    publisher: Arc<Mutex<Publisher>>,
    /// A mount has ended.
    unmounted: Notify,
    stop: mpsc::Sender<StopRequest>,
}

impl Life {
    /// Publishes what is so now everywhere, or what was published last where it was removed.
    async fn publish(self: &Arc<Self>, everywhere: bool) -> Result<()> {
        let mut publisher = self.publisher.clone().lock_owned().await;
        if everywhere {
            let mounts = self.node.lock().await.mount_records();
            self.record.lock().await.mounts = mounts;
        }
        let record = self.record.lock().await.clone();
        let handler: Arc<dyn Handler> = self.clone();
        let publish = move || match everywhere {
            true => publisher.publish(&record, &handler),
            false => publisher.restore(&record, &handler),
        };
        tokio::task::spawn_blocking(publish).await?
    }

    /// Mounts; `false` when this process is about to end, so that another one must do it.
    async fn mount(self: &Arc<Self>, request: &MountRequest) -> Result<bool> {
        let Some(mounter) = self.node.lock().await.begin_mount(request) else {
            return Ok(false);
        };
        let made = mounter.mount(request).await;
        let ended = self.node.lock().await.end_mount(made);
        let kernel = match ended {
            Ok(kernel) => kernel,
            Err(e) => {
                self.unmounted.notify_one();
                return Err(e);
            }
        };
        let life = self.clone();
        tokio::spawn(async move {
            kernel.ended().await;
            life.undo(&kernel).await;
            life.unmounted.notify_one();
        });
        self.publish(true).await?;
        Ok(true)
    }

    /// Undoes a mount that the kernel does not have any more.
    async fn undo(self: &Arc<Self>, kernel: &Arc<fuse::Mounted>) {
        let Some(end) = self.node.lock().await.take_mount(kernel) else {
            return;
        };
        if let Err(e) = self.publish(true).await {
            tracing::warn!("{e:#}");
        }
        end.await;
    }

    /// Unmounts; says whether this process then ends.
    async fn umount(self: &Arc<Self>, path: &Path, lazy: bool) -> Result<bool> {
        let kernel = self.node.lock().await.mounted(path);
        let kernel = kernel.with_context(|| format!("{} is not a mount of this process", path.display()))?;
        kernel.unmount(lazy).await.map_err(|e| mounts::in_use(e, path))?;
        self.undo(&kernel).await;
        let ends = self.role == MOUNT && self.node.lock().await.close_if_unused();
        let life = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LAST_ANSWER).await;
            life.unmounted.notify_one();
        });
        Ok(ends)
    }

    /// Stops, and answers the command that asked for it.
    async fn end(&self, request: Option<StopRequest>) -> Result<()> {
        let stopped = self.stop().await;
        let Some(request) = request else {
            return stopped;
        };
        let _ = request.done.send(stopped);
        tokio::time::sleep(LAST_ANSWER).await;
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        let stopped = self.node.lock().await.stop().await;
        self.publisher.lock().await.withdraw();
        stopped
    }

    /// Why a mount cannot be made here for a command with these start parameters, in this mount namespace.
    fn refuses(&self, told: &[String], mount_ns: &str) -> Result<()> {
        if !MOUNTING.contains(&self.role) {
            bail!("a process of `nacre {}` mounts nothing", self.role);
        }
        if let Some(other) = told.iter().find(|t| !self.told.contains(t)) {
            bail!("it was started without {other}: leave that out, or use another address with --listen");
        }
        if mount_ns != mount_namespace() {
            bail!(
                "it is in another mount namespace, so that its mounts would not be seen here: use another address with --listen"
            );
        }
        Ok(())
    }
}

impl Handler for Life {
    fn handle(self: Arc<Self>, request: Request, asker: Asker) -> BoxFuture<'static, Result<Value>> {
        Box::pin(async move {
            match request {
                Request::Stop { lazy } => {
                    let (done, word) = oneshot::channel();
                    self.stop
                        .send(StopRequest { lazy, done })
                        .await
                        .context("it is stopping already")?;
                    word.await.context("it ended without a word")??;
                    Ok(Value::Null)
                }
                Request::Status => {
                    let record = self.record.lock().await.clone();
                    Ok(json!({ "resident_bytes": bench::resident_bytes(record.pid), "record": record }))
                }
                Request::Mount {
                    mount,
                    told,
                    mount_ns,
                } => {
                    self.refuses(&told, &mount_ns)?;
                    Ok(json!({ "mounted": self.mount(&mount).await? }))
                }
                Request::Umount { mountpoint, lazy } => {
                    Ok(json!({ "ends": self.umount(&mountpoint, lazy).await? }))
                }
                request => {
                    // What is asked of the node works on shared parts, outside of its lock.
                    let parts = self.node.lock().await.parts();
                    parts.answer(request, asker).await
                }
            }
        })
    }
}

/// The mount namespace of this process.
pub(crate) fn mount_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// The log of a process that works for this directory.
pub(crate) fn log_in(dir: &Path) -> PathBuf {
    dir.join("nacre.log")
}
