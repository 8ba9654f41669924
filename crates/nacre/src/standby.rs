//! Standby servers: wait until the server of their targets ends or stops answering, and take the
//! targets over. And the end of a server whose targets another server has taken over.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lnet::Lnet;
use osd::target::{Fence, TargetDir, TargetError, TargetLabel};
use wire::Nid;

use crate::process_node::sort_for_start;

/// Interval of the attempts to lock the targets.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the pings to the targets' other service nodes, and the time limit of each.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the checks that no other server has taken a target over.
const FENCE_INTERVAL: Duration = Duration::from_millis(250);

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
        let peers = self.other_service_nodes(lnet)?;
        let mut last_answer = None;
        let mut next_ping = Instant::now();
        loop {
            let dirs = self.dirs.clone();
            let opened = tokio::task::spawn_blocking(move || try_open(&dirs)).await?;
            if let Some(targets) = opened? {
                return Ok(targets);
            }
            if next_ping <= Instant::now() {
                if answers(lnet, &peers).await {
                    last_answer = Some(Instant::now());
                }
                next_ping = Instant::now() + PING_INTERVAL;
            }
            let silence = last_answer.map_or(Duration::ZERO, |at: Instant| at.elapsed());
            if let Some(limit) = self.force_after.filter(|limit| silence >= *limit) {
                tracing::warn!(
                    "no service node has answered for {} s (--standby-timeout): taking over by force",
                    limit.as_secs()
                );
                let dirs = self.dirs.clone();
                return tokio::task::spawn_blocking(move || take_over(&dirs)).await?;
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }

    /// The NIDs in the targets' lists of service nodes, without those of this node.
    fn other_service_nodes(&self, lnet: &Lnet) -> Result<Vec<Nid>> {
        let mut nids = Vec::new();
        for dir in &self.dirs {
            nids.extend(TargetLabel::read(dir)?.service_nodes);
        }
        nids.retain(|nid| !lnet.is_local(*nid));
        nids.sort_unstable();
        nids.dedup();
        Ok(nids)
    }
}

/// Opens all targets; `None` if another process uses one of them.
fn try_open(dirs: &[PathBuf]) -> Result<Option<Vec<TargetDir>>> {
    let mut targets = Vec::new();
    for dir in dirs {
        match TargetDir::open(dir) {
            Ok(target) => targets.push(target),
            Err(TargetError::InUse { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
    sort_for_start(&mut targets);
    Ok(Some(targets))
}

/// Opens all targets, by force if another process uses them.
pub(crate) fn take_over(dirs: &[PathBuf]) -> Result<Vec<TargetDir>> {
    let open = |dir: &PathBuf| TargetDir::take_over(dir).context("cannot take over");
    let mut targets = dirs.iter().map(open).collect::<Result<Vec<_>>>()?;
    sort_for_start(&mut targets);
    Ok(targets)
}

/// Whether one of the nodes answers a ping.
async fn answers(lnet: &Arc<Lnet>, nodes: &[Nid]) -> bool {
    let mut pings = cpt::JoinSet::new();
    for nid in nodes.iter().copied() {
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

/// Starts a thread that ends this process as soon as another server has taken one of the targets
/// over: nothing that this process writes counts any more, and its clients must go to the other
/// server. The thread also removes the files of the targets' earlier generations.
pub(crate) fn watch_fences(fences: Vec<Fence>) -> Result<()> {
    let mut with_earlier = fences.clone();
    let watch = move || loop {
        for fence in &fences {
            if let Err(e) = fence.check() {
                tracing::error!("{e}. This process ends");
                std::process::exit(1);
            }
        }
        with_earlier.retain(|fence| match fence.remove_earlier_generations() {
            Ok(removed) => !removed,
            Err(e) => {
                tracing::warn!("cannot remove the files of earlier generations: {e}");
                false
            }
        });
        thread::sleep(FENCE_INTERVAL);
    };
    thread::Builder::new()
        .name("fence".into())
        .spawn(watch)
        .context("cannot start the thread that watches the generations of targets")?;
    Ok(())
}
