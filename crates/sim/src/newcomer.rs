//! A client that first mounts while a server recovers, and one of the server's clients is missing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::oneshot;
use wire::Fid;

use crate::cluster::{Cluster, Host};
use crate::history::History;
use crate::run::Settings;
use crate::workload::Workload;

/// Makes the seed of the newcomer's choices differ from other seeds, so that the choices of a run
/// without a newcomer stay the same.
const SALT: u64 = 0x6e65_7763_6f6d_6572;
/// How long a client of a server is cut off from it after the server's start, milliseconds. The
/// server waits longer.
const MISSING_MS: std::ops::Range<u64> = 500..8_000;

/// Decides when the newcomer mounts, and which client is missing then.
pub struct Arrival {
    mount: Option<oneshot::Sender<()>>,
    rng: Rng,
}

/// A client that is missing when a server recovers.
pub struct Missing {
    /// The client's host.
    pub host: Arc<Host>,
    /// The time from the server's start to its return.
    pub time: Duration,
}

impl Arrival {
    /// The arrival of a newcomer, and the signal for its mount.
    pub fn new(seed: u64) -> (Arrival, oneshot::Receiver<()>) {
        let (mount, signal) = oneshot::channel();
        let rng = Rng::with_seed(seed ^ SALT);
        (
            Arrival {
                mount: Some(mount),
                rng,
            },
            signal,
        )
    }

    /// Whether the newcomer mounts after this death of a server; if so, the client that is missing
    /// then.
    pub fn choose_missing(&mut self, clients: &[Arc<Host>]) -> Option<Missing> {
        if self.mount.is_none() || self.rng.u8(0..4) == 0 {
            return None;
        }
        let living: Vec<_> = clients.iter().filter(|host| host.is_up()).cloned().collect();
        let host = self.rng.choice(living)?;
        let time = Duration::from_millis(self.rng.u64(MISSING_MS));
        Some(Missing { host, time })
    }

    /// The newcomer mounts now.
    pub fn mount(&mut self) {
        if let Some(mount) = self.mount.take() {
            // Fails if the run has ended.
            let _ = mount.send(());
        }
    }

    /// The newcomer does not mount any more.
    pub fn cancel(&mut self) {
        self.mount = None;
    }
}

/// The calls of a newcomer.
pub struct Newcomer {
    /// Its host.
    pub host: Arc<Host>,
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// FIDs of the directories.
    pub dirs: Vec<Fid>,
    /// Where the calls are recorded.
    pub history: History,
    /// The settings of the run.
    pub settings: Settings,
}

impl Newcomer {
    /// Waits for the signal, mounts, and makes calls; ends at once if no signal comes.
    pub async fn run(self, signal: oneshot::Receiver<()>) {
        if signal.await.is_err() {
            return;
        }
        let Newcomer {
            host,
            cluster,
            dirs,
            history,
            settings,
        } = self;
        history.note(format!("node {} mounts for the first time", host.id));
        if let Err(e) = cluster.start(&host).await {
            history.note(format!("node {} did not mount: {e}", host.id));
            return;
        }
        history.note(format!("node {} has mounted", host.id));
        let Some(client) = host.client() else { return };
        let id = crate::faults::client_id(&host);
        let skipped: BTreeSet<u32> = settings
            .skipped
            .iter()
            .filter(|(client, _)| *client == id)
            .map(|(_, call)| *call)
            .collect();
        let workload = Workload::new(
            id,
            client,
            None,
            (dirs, settings.mdts),
            history,
            settings.seed ^ SALT,
        );
        let scope = host.scope();
        let work = scope.run(workload.run(settings.calls, skipped));
        tokio::select! {
            biased;
            () = work => {}
            () = scope.died() => {}
        }
    }
}
