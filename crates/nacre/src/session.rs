//! The life of a process that serves or mounts: started in the foreground or in the background, brought up, found by its
//! record, asked through its control socket, and stopped in order by a command or a signal.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use cpt::{BoxFuture, CptTable};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::control::{self, Asker, Request};
use crate::node::Node;
use crate::running::{self, Running};
use crate::start::Start;
use crate::{daemon, files, instance, output};

/// What serves others stays whatever becomes of its own mount.
const SERVERS: [&str; 2] = ["up", "serve"];

/// What a process is started for.
pub(crate) struct Session {
    /// `up`, `serve`, `mount`, `lst node` or `lst console`.
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

/// Whoever wants the process to stop, and waits for word of it.
struct StopRequest {
    lazy: bool,
    done: oneshot::Sender<Result<()>>,
}

impl Session {
    /// Runs a process to its end, or starts it in the background. `bring_up` builds what it is for and says in words
    /// what there is; when it fails, what it has built is taken down again.
    pub(crate) fn run<F, Fut>(self, bring_up: F) -> Result<ExitCode>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(Node, String)>>,
    {
        if !self.foreground && !daemon::is_child() {
            return daemon::spawn(&self.log);
        }
        if daemon::is_child() {
            daemon::detach();
        }
        daemon::start_logging();
        let ended = self.live(bring_up);
        if let Err(e) = &ended {
            tracing::error!("{}", output::describe(e));
            daemon::failed(e);
        }
        ended.map(|()| ExitCode::SUCCESS)
    }

    fn live<F, Fut>(&self, bring_up: F) -> Result<()>
    where
        F: FnOnce(Arc<CptTable>) -> Fut,
        Fut: Future<Output = Result<(Node, String)>>,
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
            let signals = Signals::new()?;
            let locks = self
                .dirs
                .iter()
                .map(|d| instance::lock(d))
                .collect::<Result<Vec<_>>>()?;
            let (node, said) = bring_up(cpts.clone()).await?;
            let said = if cpts.is_forced() {
                format!(
                    "{said}\n  {} CPU partitions are forced to share CPUs: for tests, not for measuring",
                    cpts.len()
                )
            } else {
                said
            };
            let ended = self.serve(node, &said, signals).await;
            drop(locks);
            ended
        });
        cpts.shutdown();
        ended
    }

    async fn serve(&self, node: Node, said: &str, mut signals: Signals) -> Result<()> {
        let node = Arc::new(Mutex::new(node));
        let (stop_tx, mut stop_rx) = mpsc::channel(1);
        let published = self.publish(&node, stop_tx).await;
        let (record, listener) = match published {
            Ok(both) => both,
            Err(e) => {
                let undone = node.lock().await.stop(true).await;
                return undone.and(Err(e));
            }
        };
        daemon::ready(said);
        let over = node.lock().await.over();
        tokio::pin!(over);
        loop {
            let request = tokio::select! {
                request = stop_rx.recv() => request,
                name = signals.next() => {
                    tracing::info!("stopped by {name}");
                    None
                }
                // A process that is only a mount, or a console, has nothing left to do; servers stay.
                () = &mut over, if !SERVERS.contains(&self.role) => {
                    tracing::info!("unmounted from outside, or its session has ended");
                    None
                }
            };
            // Whoever sends a signal cannot be told that something is in use: it goes anyhow.
            let lazy = request.as_ref().is_none_or(|r| r.lazy);
            let stopped = node.lock().await.stop(lazy).await;
            if stopped.is_ok() {
                record.withdraw();
            }
            match request {
                Some(r) => {
                    let failed = stopped.is_err();
                    let _ = r.done.send(stopped);
                    if failed {
                        continue;
                    }
                    // The answer is on its way through the control socket: let it out.
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                None => stopped?,
            }
            listener.abort();
            return Ok(());
        }
    }

    async fn publish(
        &self,
        node: &Arc<Mutex<Node>>,
        stop: mpsc::Sender<StopRequest>,
    ) -> Result<(Running, tokio::task::JoinHandle<()>)> {
        let pid = std::process::id();
        let control = running::run_dir()?.join(format!("{pid}.sock"));
        // A former process of our number may have died without taking its socket along.
        let _ = std::fs::remove_file(&control);
        let record = {
            let node = node.lock().await;
            Running {
                role: self.role.to_owned(),
                pid,
                start_ticks: running::start_ticks(pid).context("/proc has nothing of this process")?,
                dirs: self.dirs.clone(),
                control: control.clone(),
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
            }
        };
        let answers = Arc::new(Answers {
            node: node.clone(),
            record: record.clone(),
            stop,
        });
        let listener = control::listen(&control, answers)?;
        if let Err(e) = record.publish() {
            listener.abort();
            record.withdraw();
            return Err(e);
        }
        Ok((record, listener))
    }
}

/// Signals that end the process in order.
struct Signals {
    term: tokio::signal::unix::Signal,
    int: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        let on = |kind| signal(kind).context("cannot catch signals");
        Ok(Signals {
            term: on(SignalKind::terminate())?,
            int: on(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// Answers the commands.
struct Answers {
    node: Arc<Mutex<Node>>,
    record: Running,
    stop: mpsc::Sender<StopRequest>,
}

impl control::Handler for Answers {
    fn handle(self: Arc<Self>, request: Request, asker: Asker) -> BoxFuture<'static, Result<Value>> {
        Box::pin(async move {
            if let Request::Stop { lazy } = request {
                let (done, word) = oneshot::channel();
                self.stop
                    .send(StopRequest { lazy, done })
                    .await
                    .context("it is stopping already")?;
                word.await.context("it ended without a word")??;
                return Ok(Value::Null);
            }
            if let Request::Status = request {
                return Ok(
                    json!({ "record": self.record, "resident_bytes": bench::resident_bytes(self.record.pid) }),
                );
            }
            // The node is changed only by stopping; what is asked of it works on shared parts, outside of its lock.
            let parts = self.node.lock().await.parts();
            parts.answer(request, asker).await
        })
    }
}

/// The log of a process that works for this directory.
pub(crate) fn log_in(dir: &Path) -> PathBuf {
    dir.join("nacre.log")
}
