//! Follows a log: reads it, and reads it again after each change.
//!
//! The follower takes the lock on the configuration before it reads the log, as Lustre's clients
//! do, so that no change is missed. After the MGS has revoked the lock, it pauses briefly, so that
//! not all clients read at the same moment. A hanging client can delay the lock, but not the
//! reading: without the lock a follower polls the log.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lnet::warn_rate_limited;
use rpc::RpcError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::{FsConfig, Mgc, MgcError};

/// Pauses before a log is read again; doubled while changes follow each other closely. A follower
/// notices a change within a second.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// After this long without a change, the next change is read after the shortest pause.
const QUIET: Duration = Duration::from_secs(10);
/// How long a read waits for the lock.
const LOCK_MAX: Duration = Duration::from_millis(250);

/// The follower of one log. See the module.
pub(crate) struct Follower {
    mgc: Weak<Mgc>,
    logname: String,
    /// Notified when the log may have changed.
    changed: Arc<Notify>,
    /// The lock request, until the MGS grants it.
    locking: Option<JoinHandle<Result<(), RpcError>>>,
    /// Whether a change since the last read notifies `changed`.
    is_current: bool,
    tx: watch::Sender<Arc<FsConfig>>,
}

impl Follower {
    /// A follower that has not read its log yet.
    pub(crate) fn new(
        mgc: Weak<Mgc>,
        logname: &str,
        changed: Arc<Notify>,
        tx: watch::Sender<Arc<FsConfig>>,
    ) -> Follower {
        Follower {
            mgc,
            logname: logname.to_owned(),
            changed,
            locking: None,
            is_current: false,
            tx,
        }
    }

    /// Reads the log, under the lock if the MGS grants it soon.
    pub(crate) async fn read(&mut self, mgc: &Arc<Mgc>) -> Result<(), MgcError> {
        self.is_current = false;
        let is_locked = self.lock(mgc).await;
        match mgc.read_config(&self.logname).await {
            Ok(config) => {
                self.tx.send_if_modified(|old| {
                    let is_new = **old != config;
                    *old = Arc::new(config);
                    is_new
                });
            }
            // The MGS revokes the lock when it creates the log.
            Err(MgcError::NoSuchLog { .. }) => {}
            Err(e) => return Err(e),
        }
        self.is_current = is_locked;
        Ok(())
    }

    /// Requests the lock. Returns whether this client holds it.
    async fn lock(&mut self, mgc: &Arc<Mgc>) -> bool {
        let locking = self.locking.get_or_insert_with(|| {
            let (mgc, logname) = (mgc.clone(), self.logname.clone());
            tokio::spawn(async move { mgc.lock(&logname).await })
        });
        let Ok(ended) = timeout(LOCK_MAX, locking).await else {
            return false;
        };
        self.locking = None;
        match ended {
            Ok(Ok(())) => true,
            Ok(Err(e)) => {
                tracing::debug!("no lock on the configuration '{}': {e}", self.logname);
                false
            }
            Err(_) => false,
        }
    }

    /// Follows the log until the connection or the last receiver is dropped.
    pub(crate) async fn run(mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            if !self.is_current {
                let Some(mgc) = self.mgc.upgrade() else { return };
                if let Err(e) = self.read(&mgc).await {
                    warn_rate_limited!("{e}");
                }
            }
            if self.tx.is_closed() {
                return;
            }
            if self.is_current && timeout(QUIET, self.changed.notified()).await.is_err() {
                tokio::select! {
                    () = self.changed.notified() => pause = PAUSE_MIN,
                    () = self.tx.closed() => return,
                }
            }
            self.is_current = false;
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
