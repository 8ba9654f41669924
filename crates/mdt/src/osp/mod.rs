//! The object targets, as the metadata target uses them: objects for new files, made ahead of need; removing and
//! giving away objects of files that are gone or have a new owner; how full they are.
//!
//! Each OST has an import and two tasks: one keeps objects at hand ([`pool`]), one works off what transactions queued
//! ([`work`]). After a crash, objects that no file got are removed ([`settle`]). OSTs that the configuration names later join later.

mod full;
mod ost;
pub(crate) mod pool;
pub(crate) mod settle;
mod work;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use mgc::{FsConfig, TargetConf};
use params::{Group, Registry};
use parking_lot::{Mutex, RwLock};
use rpc::Ptlrpc;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use wire::{Errno, Fid, LOV_MIN_STRIPE_SIZE, ObdStatfs, OstIndex};

pub(crate) use ost::Ost;

use crate::{
    layout::{self, Object, Wanted},
    lod::{self, Candidate},
    params_of,
    store::Store,
};

/// Lustre's clients read a changed configuration after 5 to 10 s, and fail on a file with an object on an OST that they do
/// not know.
const NEW_OST_DELAY_SECS: u64 = 15;

/// How long a create waits for an OST that has no objects at hand.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a create that finds all OSTs full waits for what they say now.
const STATFS_PATIENCE: Duration = Duration::from_secs(1);

/// Told when something changes that a create may wait for.
type Changes = watch::Sender<()>;

/// The filesystem's layout of files where no directory says anything.
#[derive(Clone)]
pub(crate) struct Defaults {
    /// Bytes of a stripe.
    pub(crate) stripe_size: Arc<AtomicU64>,
    /// How many stripes.
    pub(crate) stripe_count: Arc<AtomicU64>,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            stripe_size: Arc::new(AtomicU64::new(layout::DEFAULT_STRIPE_SIZE.into())),
            stripe_count: Arc::new(AtomicU64::new(layout::DEFAULT_STRIPE_COUNT.into())),
        }
    }
}

impl Defaults {
    fn wanted(&self) -> Wanted {
        let in_range = |v: u64| u32::try_from(v).unwrap_or(0);
        Wanted {
            stripe_size: in_range(self.stripe_size.load(Ordering::Relaxed)) / LOV_MIN_STRIPE_SIZE
                * LOV_MIN_STRIPE_SIZE,
            stripe_count: in_range(self.stripe_count.load(Ordering::Relaxed)) as u16,
            ..Wanted::default()
        }
    }
}

/// All OSTs of the file system.
pub(crate) struct Osts {
    rpc: Arc<Ptlrpc>,
    store: Arc<Store>,
    /// `testfs-MDT0000`.
    mdt: String,
    /// Sorted by index.
    osts: RwLock<Vec<Arc<Ost>>>,
    turn: AtomicU64,
    /// Creates that had to wait for objects.
    waits: AtomicU64,
    defaults: Defaults,
    new_ost_delay: Arc<AtomicU64>,
    registry: Registry,
    /// What the registry shows of the OSTs.
    groups: Mutex<Vec<Group>>,
    /// Told when an OST joins, and when one has objects at hand again.
    changes: Changes,
}

impl Osts {
    /// No OSTs yet.
    pub(crate) fn new(rpc: Arc<Ptlrpc>, store: Arc<Store>, mdt: String, registry: Registry) -> Osts {
        Osts {
            rpc,
            store,
            mdt,
            osts: RwLock::default(),
            turn: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            defaults: Defaults::default(),
            new_ost_delay: Arc::new(NEW_OST_DELAY_SECS.into()),
            registry,
            groups: Mutex::default(),
            changes: Changes::new(()),
        }
    }

    /// Begins to use the OSTs of the configuration that are not used yet, and connects to those that have moved at their
    /// new NIDs. New files are put on new OSTs after `known_in`.
    pub(crate) fn join(&self, config: &FsConfig, known_in: Duration) -> Result<(), Errno> {
        for target in config.osts.iter().filter(|t| t.active) {
            match self.get(OstIndex(target.index)) {
                Some(known) => known.set_nids(&target.nids),
                None => self.add(target, known_in)?,
            }
        }
        Ok(())
    }

    /// How long new files are not put on an OST that has just joined, seconds.
    pub(crate) fn new_ost_delay(&self) -> &Arc<AtomicU64> {
        &self.new_ost_delay
    }

    fn add(&self, target: &TargetConf, known_in: Duration) -> Result<(), Errno> {
        let changes = self.changes.clone();
        let ost = Ost::start(&self.rpc, &self.store, &self.mdt, target, changes, known_in)?;
        self.groups
            .lock()
            .push(params_of::register_ost(&ost, &self.registry));
        let mut osts = self.osts.write();
        osts.push(ost);
        osts.sort_by_key(|o| o.index());
        drop(osts);
        self.changes.send_replace(());
        Ok(())
    }

    /// Waits until this many OSTs have objects at hand.
    pub(crate) async fn ready(&self, count: usize) {
        let mut changes = self.changes.subscribe();
        let enough = |_: &()| self.all().iter().filter(|o| o.candidate().ready).count() >= count;
        // Fails only when the sender is gone, and it is our own.
        let _ = changes.wait_for(enough).await;
    }

    /// The layout where no directory says anything.
    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// An OST by its index.
    pub(crate) fn get(&self, index: OstIndex) -> Option<Arc<Ost>> {
        self.osts.read().iter().find(|o| o.index() == index).cloned()
    }

    /// All OSTs.
    pub(crate) fn all(&self) -> Vec<Arc<Ost>> {
        self.osts.read().clone()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.osts.read().len()
    }

    /// The layout of a new file: objects on OSTs that have some at hand, as many as are wanted and there.
    pub(crate) async fn allocate(&self, file: Fid, wanted: &Wanted) -> Result<Bytes, Errno> {
        let wanted = &wanted.clone().or(&self.defaults.wanted());
        // Once for each file: what a create waits for must not move the files after it to other OSTs.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut tried = self.try_allocate(wanted, turn);
        if matches!(tried, Err(Errno::ENOSPC)) {
            // Something may have been removed since they were asked.
            let _ = timeout(STATFS_PATIENCE, self.statfs()).await;
            tried = self.try_allocate(wanted, turn);
        }
        let objects = match tried? {
            Some(objects) => objects,
            None => match timeout(PATIENCE, self.wait_and_allocate(wanted, turn)).await {
                Ok(objects) => objects?,
                Err(_) => {
                    tracing::warn!("{}: no OST has objects for {file}", self.mdt);
                    return Err(Errno::ENOSPC);
                }
            },
        };
        Ok(layout::build(file, wanted.stripe_size, wanted.pool, &objects))
    }

    /// Gives the new objects of a layout the size that the file had without objects.
    ///
    /// # Errors
    /// Those of the OST; `ETIMEDOUT` when it does not answer.
    pub(crate) async fn extend(&self, lov: &[u8], size: u64) -> Result<(), Errno> {
        let Some((object, size)) = layout::last_object(lov, size)? else {
            return Ok(());
        };
        let ost = self.get(object.ost).ok_or(Errno::ENODEV)?;
        let extended = timeout(PATIENCE, ost.extend(object.fid, size)).await;
        extended.unwrap_or(Err(Errno::ETIMEDOUT))
    }

    async fn wait_and_allocate(&self, wanted: &Wanted, turn: u64) -> Result<Vec<Object>, Errno> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if let Some(objects) = self.try_allocate(wanted, turn)? {
                return Ok(objects);
            }
            // Fails only when the sender is gone, and it is our own.
            changes.changed().await.map_err(|_| Errno::ESHUTDOWN)?;
        }
    }

    fn try_allocate(&self, wanted: &Wanted, turn: u64) -> Result<Option<Vec<Object>>, Errno> {
        let osts = self.all();
        let candidates: Vec<Candidate> = osts.iter().map(|o| o.candidate()).collect();
        let order = lod::order(&candidates, wanted, turn)?;
        let count = wanted.count_of(osts.len()).max(1);
        let mut objects = Vec::with_capacity(count);
        for index in order {
            let ost = osts.iter().find(|o| o.index() == index).ok_or(Errno::EINVAL)?;
            match ost.take()? {
                Some(fid) => objects.push(Object { ost: index, fid }),
                // The user's own choice is not changed.
                None if !wanted.osts.is_empty() || wanted.first == Some(index) => return Ok(None),
                None => {}
            }
            if objects.len() == count {
                break;
            }
        }
        // As in Lustre, a file has fewer stripes than wanted rather than none.
        Ok((!objects.is_empty()).then_some(objects))
    }

    /// How many creates had to wait for objects.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// The space of all OSTs; those that are away or do not answer count as they were last seen.
    pub(crate) async fn statfs(&self) -> Vec<ObdStatfs> {
        let mut asked = JoinSet::new();
        for ost in self.all() {
            asked.spawn(async move { ost.statfs().await });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    /// Stops all tasks, notes exactly which ids are in use, and disconnects.
    pub(crate) async fn stop(&self) {
        let osts = std::mem::take(&mut *self.osts.write());
        self.groups.lock().clear();
        for ost in &osts {
            ost.stop().await;
        }
        if let Err(e) = settle::note_exact(&self.store) {
            tracing::warn!("{}: objects are looked through at the next start: {e}", self.mdt);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{Arc, atomic::Ordering},
        time::Duration,
    };

    use osd::MemoryIndex;
    use tokio::time::timeout;
    use wire::Fid;

    use super::Osts;
    use crate::{layout::Wanted, store::Store};

    /// How long to poll a create. No OST exists, so it cannot finish, however long this is.
    const TRY: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_create_that_waits_takes_one_turn_however_often_it_tries_again() {
        let store = Arc::new(Store::new(Arc::new(MemoryIndex::default())));
        let rpc = rpc::testing::node(1);
        let osts = Osts::new(rpc, store, "testfs-MDT0000".into(), Default::default());
        let wanted = Wanted::default();
        let create = osts.allocate(Fid::new(0x2_0000_0400, 1, 0), &wanted);
        tokio::pin!(create);
        for _ in 0..3 {
            assert!(timeout(TRY, &mut create).await.is_err(), "it waits");
            osts.changes.send_replace(());
        }
        assert_eq!(osts.waits(), 1);
        assert_eq!(osts.turn.load(Ordering::Relaxed), 1);
    }
}
