//! The life of a process with a node: it starts in the foreground or background, brings up its
//! node, publishes its record, answers control requests, and stops. It stops on a command or
//! signal, or at the end of its LNet selftest session. A process of `nacre mount` also stops after
//! its last mount has ended.

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

use crate::control::{Answers, Caller, Handler, Request};
use crate::process::{self, ProcessRecord};
use crate::process_node::{LocalMount, LocalTarget, MountRequest, ProcessNode, check_saved};
use crate::publish::Publisher;
use crate::standby::Standby;
use crate::start::StartConfig;
use crate::{daemon, fd_limit, instance, logging, mounts, output, service_manager};

/// Role of a process that exists for its mounts: it exits with the last of them.
pub(crate) const MOUNT_ROLE: &str = "mount";
/// Roles of processes that accept mount requests of other commands.
pub(crate) const MOUNTING_ROLES: [&str; 4] = ["up", "serve", "lnet", MOUNT_ROLE];
/// Interval of the checks that the process's records are still published.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(1);

/// Description of the process to run.
pub(crate) struct DaemonSpec {
    /// The role: `up`, `serve`, `mount`, `lnet`, `lst node` or `lst console`.
    pub(crate) role: &'static str,
    /// Directories that the process serves.
    pub(crate) dirs: Vec<PathBuf>,
    /// Another process, which hangs, may have locked the directories.
    pub(crate) takes_over: bool,
    /// The log file, used in the background.
    pub(crate) log: PathBuf,
    /// Stay in the foreground.
    pub(crate) foreground: bool,
    /// The start parameters.
    pub(crate) start: StartConfig,
}

/// Remaining work once a node is up and its record is published.
pub(crate) struct AfterStart {
    /// Mount this file system before the process is ready.
    pub(crate) mount: Option<MountRequest>,
    /// Returns the text to print when the process is ready; `None` if the command is quiet.
    pub(crate) ready_text: Box<dyn FnOnce() -> Option<String>>,
    /// Wait for these targets and serve them; each may wait this long for its MGS.
    pub(crate) standby: Option<(Standby, Duration)>,
}

impl From<String> for AfterStart {
    fn from(text: String) -> AfterStart {
        AfterStart {
            mount: None,
            ready_text: Box::new(move || Some(text)),
            standby: None,
        }
    }
}

/// A command's request to stop the process.
struct StopRequest {
    /// Detach mounts that are in use.
    lazy: bool,
    /// Sends the result to the command.
    result: oneshot::Sender<Result<()>>,
}

impl DaemonSpec {
    /// Runs the process until it exits, or starts it in the background. `bring_up` builds the node
    /// and returns the remaining work; before it returns an error, it must stop the node.
    pub(crate) fn run<F, Fut, T>(self, bring_up: F) -> Result<ExitCode>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(ProcessNode, T)>>,
        T: Into<AfterStart>,
    {
        if !self.foreground && !daemon::is_child() {
            return daemon::spawn(&self.log);
        }
        if daemon::is_child() {
            daemon::leave_working_directory();
            daemon::report_panics();
        }
        logging::start();
        // New files, such as stores and logs, are for this user only.
        osd::files::restrict_umask();
        let result = self.run_to_end(bring_up);
        if let Err(e) = &result {
            tracing::error!("{}", output::describe(e));
            daemon::report_failed(e);
        }
        result.map(|()| ExitCode::SUCCESS)
    }

    fn run_to_end<F, Fut, T>(&self, bring_up: F) -> Result<()>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(ProcessNode, T)>>,
        T: Into<AfterStart>,
    {
        fd_limit::raise();
        let cpts = CptTable::build(&self.start.cpt).context("cannot start the CPU partitions")?;
        if cpts.shares_cpus() {
            tracing::warn!(
                "CPU partitions share CPUs (force_partitions): do not use this process for measurements"
            );
        }
        let first_partition = cpts
            .iter()
            .next()
            .context("no CPU partition is configured")?
            .handle()
            .tokio()
            .clone();
        let result = first_partition.block_on(async {
            // Catch signals first, so that none can leave files or mounts behind.
            let mut signals = Signals::new()?;
            let locks = self
                .dirs
                .iter()
                .filter(|_| !self.takes_over)
                .map(|d| instance::lock(d))
                .collect::<Result<Vec<_>>>()?;
            // A target may wait long for its MGS: a signal or the end of the parent ends this wait.
            let (node, work) = tokio::select! {
                result = bring_up(cpts.clone()) => result?,
                name = signals.next_terminating() => bail!("stopped by {name} before it was up"),
                () = daemon::parent_exited() => bail!("the command that started this process ended before the process was up"),
            };
            let mut after_start: AfterStart = work.into();
            if cpts.shares_cpus() {
                let (ready_text, count) = (after_start.ready_text, cpts.len());
                after_start.ready_text = Box::new(move || {
                    let text = ready_text()?;
                    Some(format!(
                        "{text}\n  {count} CPU partitions are forced to share CPUs: \
                         suitable for tests, not for measurements",
                    ))
                });
            }
            let result = self.serve(node, after_start, signals).await;
            drop(locks);
            result
        });
        cpts.shutdown();
        result
    }

    /// Publishes the record, mounts if requested, and serves control requests until the process
    /// stops.
    async fn serve(
        &self,
        mut node: ProcessNode,
        after_start: AfterStart,
        mut signals: Signals,
    ) -> Result<()> {
        let publisher = Publisher::new(&self.dirs, std::process::id());
        let mountpoint = after_start.mount.as_ref().map(|m| m.mountpoint.clone());
        let (publisher, record) = match publisher.and_then(|p| Ok((p, self.record(&node, mountpoint)?))) {
            Ok(pair) => pair,
            Err(e) => {
                let stopped = node.stop().await;
                return stopped.and(Err(e));
            }
        };
        let (stop, mut stop_requests) = mpsc::channel(1);
        let session_end = node.wait_for_session_end();
        let daemon = Arc::new(Daemon {
            role: self.role,
            start_params: self.start.settings(),
            record: Mutex::new(record),
            node: Mutex::new(node),
            publisher: Arc::new(Mutex::new(publisher)),
            mount_ended: Notify::new(),
            stop,
            answers: Answers::default(),
        });
        if let Err(e) = daemon.publish(true).await {
            let stopped = daemon.stop().await;
            return stopped.and(Err(e));
        }
        let AfterStart {
            mount,
            ready_text,
            standby,
        } = after_start;
        let mut ready_text = Some(ready_text);
        let mounting_daemon = daemon.clone();
        let first_mount = async move {
            match mount {
                Some(request) => mounting_daemon.mount(&request).await.map(drop),
                None => Ok(()),
            }
        };
        // A task of its own: it takes locks that the code below also takes.
        let activating_daemon = daemon.clone();
        let mut activation = standby.map(|(standby, wait)| {
            tokio::spawn(async move { activating_daemon.activate(&standby, wait).await })
        });
        tokio::pin!(first_mount, session_end);
        let mut republish = tokio::time::interval(REPUBLISH_INTERVAL);
        republish.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let request = tokio::select! {
                request = stop_requests.recv() => request,
                signal = signals.next() => match signal {
                    "SIGHUP" => {
                        crate::daemon::reopen_log(&self.log);
                        continue;
                    }
                    name => {
                        tracing::info!("stopped by {name}");
                        None
                    }
                },
                result = &mut first_mount, if ready_text.is_some() => {
                    let text = ready_text.take().and_then(|ready_text| ready_text());
                    match result {
                        Ok(()) => crate::daemon::report_ready(text),
                        // Another command has mounted through this process meanwhile, so this
                        // process must continue.
                        Err(e) if self.role == MOUNT_ROLE && !daemon.node.lock().await.refuse_mounts_if_unused() => {
                            tracing::error!("{}", output::describe(&e));
                            crate::daemon::report_refused(&e);
                        }
                        Err(e) => {
                            let stopped = daemon.stop().await;
                            return stopped.and(Err(e));
                        }
                    }
                    continue;
                }
                () = daemon.mount_ended.notified() => {
                    if self.role != MOUNT_ROLE || !daemon.node.lock().await.refuse_mounts_if_unused() {
                        continue;
                    }
                    tracing::info!("stopping: the last mount has ended");
                    None
                }
                result = end_of(&mut activation) => {
                    activation = None;
                    if let Err(e) = result.map_err(anyhow::Error::from).flatten() {
                        let stopped = daemon.stop().await;
                        return stopped.and(Err(e));
                    }
                    continue;
                }
                () = &mut session_end => {
                    tracing::info!("stopping: the LNet selftest session has ended");
                    None
                }
                _ = republish.tick() => {
                    if let Err(e) = daemon.publish(false).await {
                        tracing::warn!("cannot publish the process record: {e:#}");
                    }
                    continue;
                }
            };
            // A stop without a request cannot return an error, so mounts in use are detached.
            let lazy = request.as_ref().is_none_or(|r| r.lazy);
            let unmounted = daemon.node.lock().await.unmount_all(lazy).await;
            match (unmounted, request) {
                (Err(e), Some(request)) if !lazy => {
                    let _ = request.result.send(Err(e));
                    continue;
                }
                (unmounted, request) => {
                    if let Err(e) = unmounted {
                        tracing::warn!("{e:#}");
                    }
                    if let Some(activation) = activation {
                        activation.abort();
                        let _ = activation.await;
                    }
                    return daemon.stop_and_answer(request).await;
                }
            }
        }
    }
}

/// Waits for the result of a future, for ever if there is none.
async fn end_of<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

impl DaemonSpec {
    /// The record to publish.
    fn record(&self, node: &ProcessNode, mountpoint: Option<PathBuf>) -> Result<ProcessRecord> {
        let pid = std::process::id();
        Ok(ProcessRecord {
            role: self.role.to_owned(),
            pid,
            start_ticks: process::start_ticks(pid)
                .context("cannot read the start time of this process in /proc")?,
            boot_id: process::boot_id(),
            dirs: self.dirs.clone(),
            control: PathBuf::new(),
            owner: process::uid(),
            nids: node.nids().iter().map(|n| n.to_string()).collect(),
            port: node.port(),
            targets: node.target_names(),
            mounts: node.mount_records(),
            mountpoint,
            session: node.session_key(),
            log: daemon::log_place(&self.log),
        })
    }
}

/// The signals that a process handles.
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

    /// Waits for a signal that ends the process.
    async fn next_terminating(&mut self) -> &'static str {
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

/// The state of a running process that its control requests and signals act on.
struct Daemon {
    role: &'static str,
    /// Start parameters, `NAME=VALUE`.
    start_params: Vec<String>,
    /// The record published last. It has its own lock because the node's lock is held for long
    /// while the node stops.
    record: Mutex<ProcessRecord>,
    node: Mutex<ProcessNode>,
    publisher: Arc<Mutex<Publisher>>,
    /// Notified when a mount has ended.
    mount_ended: Notify,
    stop: mpsc::Sender<StopRequest>,
    /// The commands that wait for an answer of this process.
    answers: Answers,
}

impl Daemon {
    /// Publishes the current record everywhere, or restores the last one only where it was removed.
    async fn publish(self: &Arc<Self>, everywhere: bool) -> Result<()> {
        let mut publisher = self.publisher.clone().lock_owned().await;
        if everywhere {
            let (mounts, targets) = {
                let node = self.node.lock().await;
                (node.mount_records(), node.target_names())
            };
            let mut record = self.record.lock().await;
            (record.mounts, record.targets) = (mounts, targets);
        }
        let record = self.record.lock().await.clone();
        let handler: Arc<dyn Handler> = self.clone();
        let publish = move || match everywhere {
            true => publisher.publish(&record, &handler),
            false => publisher.restore(&record, &handler),
        };
        tokio::task::spawn_blocking(publish).await?
    }

    /// Waits as a standby for targets, and serves them.
    async fn activate(self: &Arc<Self>, standby: &Standby, wait: Duration) -> Result<()> {
        let lnet = self.node.lock().await.lnet();
        let targets = standby.wait(&lnet).await?;
        {
            let mut publisher = self.publisher.lock().await;
            publisher.withdraw();
            *publisher = Publisher::new(&standby.dirs, std::process::id())?;
            self.record.lock().await.dirs.clone_from(&standby.dirs);
        }
        let targets = targets.into_iter().map(LocalTarget::Dir).collect();
        // The node must not be locked while the targets wait for their MGS.
        let starting = self.node.lock().await.begin_serve(targets)?;
        starting.finish(wait).await?;
        let names = self.node.lock().await.target_names().join(" ");
        tracing::info!("took over {names}");
        service_manager::report_status(&format!("serving {names}"));
        self.publish(true).await
    }

    /// Mounts a file system. Returns `false` if this process is about to exit, so that another
    /// process must mount.
    async fn mount(self: &Arc<Self>, request: &MountRequest) -> Result<bool> {
        let Some(mounter) = self.node.lock().await.begin_mount() else {
            return Ok(false);
        };
        let mounted = mounter.mount(request).await;
        let result = self.node.lock().await.finish_mount(mounted);
        let mount = match result {
            Ok(mount) => mount,
            Err(e) => {
                self.mount_ended.notify_one();
                return Err(e);
            }
        };
        let daemon = self.clone();
        tokio::spawn(async move {
            mount.fuse_mount().ended().await;
            // The mount has logged an error.
            let _ = daemon.finish_unmount(mount).await;
            daemon.mount_ended.notify_one();
        });
        self.publish(true).await?;
        Ok(true)
    }

    /// Removes a mount that the kernel has already ended. Fails if changes of it may be lost.
    async fn finish_unmount(self: &Arc<Self>, mount: Arc<LocalMount>) -> Result<()> {
        // If another task has removed the mount, it may not have published the change yet.
        self.node.lock().await.remove_mount(&mount);
        if let Err(e) = self.publish(true).await {
            tracing::warn!("cannot publish the process record: {e:#}");
        }
        let unsaved = mount.end().await;
        self.node.lock().await.forget_mount(&mount);
        check_saved(unsaved)
    }

    /// Unmounts the mount at `path`. Returns whether this process then exits.
    async fn umount(self: &Arc<Self>, path: &Path, lazy: bool) -> Result<bool> {
        let mount = self.node.lock().await.mount_at(path);
        let mount = mount.with_context(|| format!("{} is not a mount of this process", path.display()))?;
        mount
            .fuse_mount()
            .unmount(lazy)
            .await
            .map_err(|e| mounts::busy_error(e, path))?;
        let saved = self.finish_unmount(mount).await;
        let ends = self.role == MOUNT_ROLE && self.node.lock().await.refuse_mounts_if_unused();
        self.mount_ended.notify_one();
        saved?;
        Ok(ends)
    }

    /// Stops the node and answers the command that requested the stop, if any. Waits until the
    /// commands have their answers.
    async fn stop_and_answer(&self, request: Option<StopRequest>) -> Result<()> {
        let stopped = self.stop().await;
        let result = match request {
            None => stopped,
            Some(request) => {
                let _ = request.result.send(stopped);
                Ok(())
            }
        };
        self.answers.wait_until_all_have_left().await;
        result
    }

    /// Stops the node and removes the records.
    async fn stop(&self) -> Result<()> {
        service_manager::report_stopping();
        let stopped = self.node.lock().await.stop().await;
        self.publisher.lock().await.withdraw();
        stopped
    }

    /// Fails if this process cannot mount for a command with these start parameters in this mount
    /// namespace.
    fn check_can_mount(&self, start_params: &[String], mount_ns: &str) -> Result<()> {
        if !MOUNTING_ROLES.contains(&self.role) {
            bail!("a process of `nacre {}` cannot mount", self.role);
        }
        if let Some(other) = start_params.iter().find(|p| !self.start_params.contains(p)) {
            bail!(
                "it was started without {other}: omit this parameter, or start another process with --listen"
            );
        }
        if mount_ns != mount_namespace() {
            bail!(
                "it is in another mount namespace and its mounts would be invisible here: start another process with --listen"
            );
        }
        Ok(())
    }
}

impl Handler for Daemon {
    fn answers(&self) -> &Answers {
        &self.answers
    }

    fn handle(self: Arc<Self>, request: Request, caller: Caller) -> BoxFuture<'static, Result<Value>> {
        Box::pin(async move {
            match request {
                Request::Stop { lazy } => {
                    let (sender, receiver) = oneshot::channel();
                    self.stop
                        .send(StopRequest { lazy, result: sender })
                        .await
                        .context("the process is already stopping")?;
                    receiver.await.context("the process exited without an answer")??;
                    Ok(Value::Null)
                }
                Request::Status => {
                    let record = self.record.lock().await.clone();
                    Ok(json!({ "resident_bytes": bench::resident_bytes(record.pid), "record": record }))
                }
                Request::Mount {
                    mount,
                    start_params,
                    mount_ns,
                } => {
                    self.check_can_mount(&start_params, &mount_ns)?;
                    Ok(json!({ "mounted": self.mount(&mount).await? }))
                }
                Request::Umount { mountpoint, lazy } => {
                    Ok(json!({ "ends": self.umount(&mountpoint, lazy).await? }))
                }
                request => {
                    // The handles answer without the node's lock.
                    let handles = self.node.lock().await.handles();
                    handles.answer(request, caller).await
                }
            }
        })
    }
}

/// The identity of this process's mount namespace.
pub(crate) fn mount_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// Path of the log of a process that serves this directory.
pub(crate) fn log_in(dir: &Path) -> PathBuf {
    dir.join("nacre.log")
}
