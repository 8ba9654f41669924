//! Standby servers: wait until the server of their targets ends or stops answering, and take the
//! targets over. And the end of a server after another server has taken over its targets.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lnet::Lnet;
use osd::target::{Fence, TargetDir, TargetError, TargetServer};
use wire::Nid;

use crate::process_node::sort_for_start;

/// Interval of the attempts to lock the targets.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the pings to the targets' servers, and the time limit of each.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the checks that no other server has taken a target over.
const FENCE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of the attempts to remove the files of earlier generations.
const REMOVE_INTERVAL: Duration = Duration::from_secs(3);
/// Interval of the warnings that this fails for a target.
const WARN_INTERVAL: Duration = Duration::from_secs(600);

/// Targets that another server serves.
#[derive(Clone)]
pub(crate) struct Standby {
    /// The directories of the targets, on a store that the servers share.
    pub(crate) dirs: Vec<PathBuf>,
    /// Take the targets over by force when their server has answered pings and then has not
    /// answered for this time; `None`: never.
    pub(crate) force_after: Option<Duration>,
}

impl Standby {
    /// Waits until the targets are free, or their server does not answer any more. Returns the
    /// locked targets.
    ///
    /// # Errors
    ///
    /// A target's directory cannot be read, or a target cannot be taken over.
    pub(crate) async fn wait(&self, lnet: &Arc<Lnet>) -> Result<Vec<TargetDir>> {
        let mut last_answer: Option<(Vec<TargetServer>, Instant)> = None;
        let mut next_ping = Instant::now();
        loop {
            if let Some(targets) = self.with_dirs(try_open).await? {
                return Ok(targets);
            }
            if next_ping <= Instant::now() {
                let servers = self.with_dirs(servers).await?;
                if answers(lnet, &servers).await {
                    if last_answer.as_ref().is_none_or(|(before, _)| *before != servers) {
                        let nids: Vec<String> = nids_of(&servers).iter().map(Nid::to_string).collect();
                        tracing::info!("the servers at {} answer: standing by", nids.join(" "));
                    }
                    last_answer = Some((servers, Instant::now()));
                }
                next_ping = Instant::now() + PING_INTERVAL;
            }
            let is_silent =
                |(_, at): &mut (_, Instant)| self.force_after.is_some_and(|limit| at.elapsed() >= limit);
            if let Some((servers, at)) = last_answer.take_if(is_silent) {
                tracing::warn!(
                    "the servers have not answered for {} s (--standby-timeout): taking over by force",
                    at.elapsed().as_secs()
                );
                let take_over = move |dirs: &[PathBuf]| take_over(dirs, &servers);
                if let Some(targets) = self.with_dirs(take_over).await? {
                    return Ok(targets);
                }
                tracing::info!("the targets have another server now: standing by");
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// Calls `f` with the directories on a thread for blocking work.
    async fn with_dirs<T: Send + 'static>(
        &self,
        f: impl FnOnce(&[PathBuf]) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let dirs = self.dirs.clone();
        tokio::task::spawn_blocking(move || f(&dirs)).await?
    }
}

/// Opens all targets; `None` if another process uses one of them.
fn try_open(dirs: &[PathBuf]) -> Result<Option<Vec<TargetDir>>> {
    open_all(dirs.iter().map(|dir| TargetDir::open(dir)))
}

/// Opens all targets, by force if these servers use them; `None` if another process uses one.
fn take_over(dirs: &[PathBuf], servers: &[TargetServer]) -> Result<Option<Vec<TargetDir>>> {
    let opened = dirs.iter().zip(servers);
    open_all(opened.map(|(dir, server)| TargetDir::take_over(dir, server))).context("cannot take over")
}

fn open_all(opened: impl Iterator<Item = Result<TargetDir, TargetError>>) -> Result<Option<Vec<TargetDir>>> {
    let mut targets = Vec::new();
    for target in opened {
        match target {
            Ok(target) => targets.push(target),
            Err(TargetError::InUse { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
    sort_for_start(&mut targets);
    Ok(Some(targets))
}

/// Opens all targets, by force from the servers that use them now.
pub(crate) fn take_over_now(dirs: &[PathBuf]) -> Result<Vec<TargetDir>> {
    let open = |dir: &PathBuf| {
        let server = TargetServer::of(dir)?;
        TargetDir::take_over(dir, &server).context("cannot take over")
    };
    let mut targets = dirs.iter().map(open).collect::<Result<Vec<_>>>()?;
    sort_for_start(&mut targets);
    Ok(targets)
}

/// The present servers of the targets.
fn servers(dirs: &[PathBuf]) -> Result<Vec<TargetServer>> {
    dirs.iter().map(|dir| Ok(TargetServer::of(dir)?)).collect()
}

/// The NIDs of the servers' nodes.
fn nids_of(servers: &[TargetServer]) -> Vec<Nid> {
    let mut nids: Vec<Nid> = servers.iter().flat_map(TargetServer::nids).collect();
    nids.sort_unstable();
    nids.dedup();
    nids
}

/// Whether one of the servers answers a ping.
async fn answers(lnet: &Arc<Lnet>, servers: &[TargetServer]) -> bool {
    let mut pings = cpt::JoinSet::new();
    for nid in nids_of(servers).into_iter().filter(|nid| !lnet.is_local(*nid)) {
        let lnet = lnet.clone();
        pings.spawn(async move { lnet.ping(nid, PING_INTERVAL).await.is_ok() });
    }
    while let Some(answered) = pings.join_next().await {
        if answered.unwrap_or(false) {
            return true;
        }
    }
    false
}

/// Ends this process as soon as another server has taken one of the targets over: nothing that this
/// process writes counts any more, and its clients must go to the other server. A commit or a sync
/// that finds the takeover ends the process before a request fails; a thread looks even if nothing
/// is written. Call it before the targets start.
pub(crate) fn end_when_taken_over(fences: Vec<Fence>) -> Result<()> {
    for fence in &fences {
        fence.when_taken_over(|e| {
            tracing::error!("{e}. This process ends");
            std::process::exit(1);
        });
    }
    let watch = move || loop {
        for fence in &fences {
            // A check that fails ends the process.
            let _ = fence.check();
        }
        thread::sleep(FENCE_INTERVAL);
    };
    thread::Builder::new()
        .name("fence".into())
        .spawn(watch)
        .context("cannot start the thread that watches the generations of targets")?;
    Ok(())
}

/// Starts a thread that removes the files of the targets' earlier generations, once their servers
/// have ended. Call it after the targets have started.
pub(crate) fn remove_earlier_generations(fences: Vec<Fence>) -> Result<()> {
    let mut left: Vec<(Fence, Option<Instant>)> = fences.into_iter().map(|fence| (fence, None)).collect();
    let remove = move || {
        while !left.is_empty() {
            left.retain_mut(|(fence, warned_at)| match fence.remove_earlier_generations() {
                Ok(removed) => !removed,
                Err(e) => {
                    if warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                        tracing::warn!("cannot remove the files of earlier generations: {e}");
                        *warned_at = Some(Instant::now());
                    }
                    true
                }
            });
            thread::sleep(REMOVE_INTERVAL);
        }
    };
    thread::Builder::new()
        .name("generations".into())
        .spawn(remove)
        .context("cannot start the thread that removes earlier generations of targets")?;
    Ok(())
}
