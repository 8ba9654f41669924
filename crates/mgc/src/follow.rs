//! Follows a log or the table of NIDs: reads it, and reads it again after each change.
//!
//! As Lustre's clients do, the follower takes the lock on the log's resource before it reads the
//! log, and so misses no change. After the MGS has revoked the lock, the follower pauses before it
//! reads again: changes in quick succession cost few reads. If a client does not cancel its revoked
//! lock, the MGS grants no lock on the log to other followers in the meantime. They can still read:
//! a follower without the lock polls the log.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lnet::warn_rate_limited;
use rpc::RpcError;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::{CAPA_KEYS, CapaKeyring, CapaKeys, FsConfig, Mgc, MgcError, NODEMAPS, NodemapTable, Nodemaps};

/// The shortest pause between a change and the next read of the log. Each read doubles the pause.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause. With [`LOCK_TIMEOUT`], a follower starts to read a change within a second.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A lock held this long without a change resets the pause to [`PAUSE_MIN`].
const QUIET_TIME: Duration = Duration::from_secs(10);
/// A follower that has waited this long for the lock reads without the lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(250);

/// Data of the MGS that a follower reads again after each change.
pub(crate) trait Followed: Default + PartialEq + Send + Sync + 'static {
    /// Reads the data.
    fn read(mgc: &Mgc, logname: &str) -> impl Future<Output = Result<Self, MgcError>> + Send;
}

/// The follower of one log.
pub(crate) struct Follower<T> {
    mgc: Weak<Mgc>,
    logname: String,
    /// Notified when the log may have changed.
    changed: Arc<Notify>,
    /// The lock request in flight.
    lock_request: Option<JoinHandle<Result<(), RpcError>>>,
    /// The last read was under the lock: a later change notifies `changed`.
    is_current: bool,
    tx: watch::Sender<Arc<T>>,
}

impl<T: Followed> Follower<T> {
    /// A follower that has not read its log yet.
    pub(crate) fn new(
        mgc: Weak<Mgc>,
        logname: &str,
        changed: Arc<Notify>,
        tx: watch::Sender<Arc<T>>,
    ) -> Follower<T> {
        Follower {
            mgc,
            logname: logname.to_owned(),
            changed,
            lock_request: None,
            is_current: false,
            tx,
        }
    }

    /// Reads the log, under the lock if the MGS grants it within [`LOCK_TIMEOUT`].
    pub(crate) async fn read(&mut self, mgc: &Arc<Mgc>) -> Result<(), MgcError> {
        self.is_current = false;
        let is_locked = self.lock(mgc).await;
        match T::read(mgc, &self.logname).await {
            Ok(read) => {
                self.tx.send_if_modified(|old| {
                    let is_new = **old != read;
                    *old = Arc::new(read);
                    is_new
                });
            }
            // No error: the MGS revokes the lock when it creates the log.
            Err(MgcError::NoSuchLog { .. }) => {}
            Err(e) => return Err(e),
        }
        self.is_current = is_locked;
        Ok(())
    }

    /// Requests the lock and waits up to [`LOCK_TIMEOUT`]. Returns whether this client got the
    /// lock.
    async fn lock(&mut self, mgc: &Arc<Mgc>) -> bool {
        let lock_request = self.lock_request.get_or_insert_with(|| {
            let (mgc, logname) = (mgc.clone(), self.logname.clone());
            cpt::spawn(async move { mgc.lock(&logname).await })
        });
        let Ok(joined) = timeout(LOCK_TIMEOUT, lock_request).await else {
            return false;
        };
        self.lock_request = None;
        match joined {
            Ok(Ok(())) => true,
            Ok(Err(e)) => {
                tracing::debug!("no lock on the configuration '{}': {e}", self.logname);
                false
            }
            Err(_) => false,
        }
    }

    /// Follows the log until the [`Mgc`] or the last receiver is dropped.
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
            if self.is_current && timeout(QUIET_TIME, self.changed.notified()).await.is_err() {
                tokio::select! {
                    biased;
                    () = self.tx.closed() => return,
                    () = self.changed.notified() => pause = PAUSE_MIN,
                }
            }
            self.is_current = false;
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Builds the table from the log of nodemaps.
pub(crate) fn nodemap_table(config: &FsConfig) -> Result<NodemapTable, MgcError> {
    NodemapTable::from_params(&config.params).map_err(|why| MgcError::Bad {
        logname: NODEMAPS.to_owned(),
        why,
    })
}

/// Parses the keys of object capabilities in their log.
pub(crate) fn keys_in_log(config: &FsConfig) -> Result<CapaKeys, MgcError> {
    let param = config.params.iter().find(|p| p.name == CAPA_KEYS);
    let text = param.map_or("", |p| &p.value);
    text.parse().map_err(|why| MgcError::Bad {
        logname: CAPA_KEYS.to_owned(),
        why,
    })
}

/// Applies changes of the log of keys to the ring. Ignores an invalid log.
pub(crate) async fn follow_capa_keys(ring: Weak<CapaKeyring>, mut changes: watch::Receiver<Arc<FsConfig>>) {
    while changes.changed().await.is_ok() {
        let Some(ring) = ring.upgrade() else { return };
        let config = changes.borrow_and_update().clone();
        match keys_in_log(&config) {
            Ok(keys) => ring.set(keys),
            Err(e) => tracing::error!("{e}; keeping the previous keys of capabilities"),
        }
    }
}

/// Applies changes of the log of nodemaps to the table. Ignores an invalid log.
pub(crate) async fn follow_nodemaps(nodemaps: Weak<Nodemaps>, mut changes: watch::Receiver<Arc<FsConfig>>) {
    while changes.changed().await.is_ok() {
        let Some(nodemaps) = nodemaps.upgrade() else {
            return;
        };
        let config = changes.borrow_and_update().clone();
        match nodemap_table(&config) {
            Ok(table) if table == *nodemaps.table() => {}
            Ok(table) => nodemaps.set(table),
            Err(e) => tracing::error!("{e}; keeping the previous nodemaps"),
        }
    }
}
