//! The MDT as a client of the OSTs (Lustre's OSP): precreates objects for new files, destroys
//! objects of removed files, changes the owner of objects, and watches the OSTs' space.
//!
//! Each OST has an import and several tasks: one precreates objects ([`pool`]), one sends the work
//! queued by transactions ([`work`]), one watches the space and whether the OST answers. After a
//! crash, the MDT destroys objects that belong to no file ([`orphans`]). An OST that the
//! configuration adds later joins at run time.

pub(crate) mod orphans;
mod ost;
pub(crate) mod pool;
mod postponed;
mod shared_pool;
mod watermarks;
mod work;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use cpt::JoinSet;
use mgc::{FsConfig, NidTable, TargetConf};
use params::{Group, Registry};
use parking_lot::Mutex;
use rpc::Ptlrpc;
use tokio::{
    sync::{OwnedRwLockWriteGuard, watch},
    time::timeout,
};
use wire::{Errno, Fid, LOV_MIN_STRIPE_SIZE, ObdStatfs, OstIndex};

pub(crate) use ost::{MAX_CREATE_COUNT, Ost};

use crate::{
    layout::{self, StripeObject, StripeRequest},
    lod::{self, Candidate},
    parameters,
    store::Store,
};

/// Default of the time for which new files avoid a new OST: Lustre's clients read a changed
/// configuration after 5 to 10 s, and fail on a file with an object on an unknown OST.
const NEW_OST_DELAY_SECS: u64 = 15;

/// Time limit of an operation that waits for available objects, or for replies of OSTs.
const ALLOCATE_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval at which [`Osts::wait_ready`] checks the OSTs.
const FULL_POLL: Duration = Duration::from_millis(100);
/// Time limit of the statfs requests to the OSTs before a create fails with `ENOSPC`.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// Wakes creates that wait for objects.
type AllocationWakeup = watch::Sender<()>;

/// The signals between the set of OSTs and one OST.
struct OstSignals {
    /// Signalled when objects become available.
    wakeup: AllocationWakeup,
    /// Whether the OST may create objects.
    may_create: watch::Receiver<bool>,
}

/// The parameters for the default striping of the file system.
#[derive(Clone)]
pub(crate) struct DefaultStriping {
    /// `lod.*.stripesize`, bytes.
    pub(crate) stripe_size: Arc<AtomicU64>,
    /// `lod.*.stripecount`.
    pub(crate) stripe_count: Arc<AtomicU64>,
}

impl Default for DefaultStriping {
    fn default() -> DefaultStriping {
        DefaultStriping {
            stripe_size: Arc::new(AtomicU64::new(layout::DEFAULT_STRIPE_SIZE.into())),
            stripe_count: Arc::new(AtomicU64::new(layout::DEFAULT_STRIPE_COUNT.into())),
        }
    }
}

impl DefaultStriping {
    /// The values of the parameters, the stripe size rounded down to a valid one.
    pub(crate) fn request(&self) -> StripeRequest {
        let in_range = |value: u64| u32::try_from(value).unwrap_or(0);
        StripeRequest {
            stripe_size: in_range(self.stripe_size.load(Ordering::Relaxed)) / LOV_MIN_STRIPE_SIZE
                * LOV_MIN_STRIPE_SIZE,
            stripe_count: in_range(self.stripe_count.load(Ordering::Relaxed)) as u16,
            ..StripeRequest::default()
        }
    }
}

/// The objects of a new file.
struct Allocation {
    objects: Vec<StripeObject>,
    /// The OSTs of the further stripes of an overstriped file, which had no more objects.
    missing: Vec<OstIndex>,
}

/// All OSTs of the file system.
pub(crate) struct Osts {
    rpc: Arc<Ptlrpc>,
    store: Arc<Store>,
    /// The MDT's name, such as `testfs-MDT0000`.
    mdt: String,
    /// Sorted by index.
    osts: ArcSwap<Vec<Arc<Ost>>>,
    /// Number of allocations of layouts so far.
    turn: AtomicU64,
    /// Number of creates that had to wait for objects.
    waits: AtomicU64,
    default_striping: DefaultStriping,
    /// Time for which new files avoid an OST that just joined, seconds.
    new_ost_delay: Arc<AtomicU64>,
    registry: Registry,
    /// The parameter groups of the OSTs.
    groups: Mutex<Vec<Group>>,
    /// Signalled when an OST joins, has available objects again, becomes full, or has space again.
    wakeup: AllocationWakeup,
    /// Whether the MDT may create objects. While clients recover, it may not: files that they
    /// create again have objects that the MDT does not know yet.
    may_create: watch::Sender<bool>,
}

impl Osts {
    /// An empty set.
    pub(crate) fn new(rpc: Arc<Ptlrpc>, store: Arc<Store>, mdt: String, registry: Registry) -> Osts {
        Osts {
            rpc,
            store,
            mdt,
            osts: ArcSwap::default(),
            turn: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            default_striping: DefaultStriping::default(),
            new_ost_delay: Arc::new(NEW_OST_DELAY_SECS.into()),
            registry,
            groups: Mutex::default(),
            wakeup: AllocationWakeup::new(()),
            may_create: watch::Sender::new(true),
        }
    }

    /// Records that a file which a client creates again has this object: later files do not get
    /// it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the OST is unknown, or if the MDT cannot have allocated the object shortly
    /// before its restart; or the error of changing the store.
    pub(crate) fn readopt(&self, object: StripeObject) -> Result<(), Errno> {
        self.get(object.ost).ok_or(Errno::EINVAL)?.readopt(object.fid)
    }

    /// Adds each active OST of the configuration that is new, and updates the NIDs of the others.
    /// New files use a new OST only after `delay`.
    pub(crate) async fn apply_config(&self, config: &FsConfig, delay: Duration) -> Result<(), Errno> {
        for target in config.osts.iter().filter(|t| t.active) {
            match self.get(OstIndex(target.index)) {
                Some(known) => known.set_nids(&target.nids),
                None => self.add(target, delay).await?,
            }
        }
        Ok(())
    }

    /// Reconnects to OSTs that have started again.
    pub(crate) fn apply_locations(&self, table: &NidTable) {
        for location in table.of_kind(false) {
            if let Some(known) = self.get(OstIndex(location.index)) {
                known.target_started(&location.nids, location.instance);
            }
        }
    }

    /// The value of the parameter `new_ost_delay`.
    pub(crate) fn new_ost_delay(&self) -> &Arc<AtomicU64> {
        &self.new_ost_delay
    }

    async fn add(&self, target: &TargetConf, delay: Duration) -> Result<(), Errno> {
        let signals = OstSignals {
            wakeup: self.wakeup.clone(),
            may_create: self.may_create.subscribe(),
        };
        let ost = Ost::start(&self.rpc, &self.store, &self.mdt, target, signals, delay).await?;
        self.groups
            .lock()
            .push(parameters::register_ost(&ost, &self.registry));
        self.osts.rcu(|osts| {
            let mut osts = Vec::clone(osts);
            osts.push(ost.clone());
            osts.sort_by_key(|o| o.index());
            osts
        });
        self.wakeup.send_replace(());
        Ok(())
    }

    /// Waits until `count` OSTs have available objects or are too full for new files. Returns the
    /// full OSTs that have no available objects. Does not wait while clients recover.
    pub(crate) async fn wait_ready(&self, count: usize) -> Vec<OstIndex> {
        let mut wakeup = self.wakeup.subscribe();
        loop {
            if !*self.may_create.borrow() {
                return Vec::new();
            }
            let candidates: Vec<_> = self.all().iter().map(|o| o.candidate()).collect();
            let ready = candidates.iter().filter(|c| c.ready).count();
            let full = candidates.iter().filter(|c| c.full && !c.ready);
            let full: Vec<OstIndex> = full.map(|c| c.ost).collect();
            if ready + full.len() >= count {
                return full;
            }
            // Not every change of an OST's state wakes this task, so the wait has a time limit.
            // This struct owns the sender, so the wait does not fail.
            let _ = tokio::time::timeout(FULL_POLL, wakeup.changed()).await;
        }
    }

    /// The parameters for the default striping.
    pub(crate) fn default_striping(&self) -> &DefaultStriping {
        &self.default_striping
    }

    /// The OST with this index.
    pub(crate) fn get(&self, index: OstIndex) -> Option<Arc<Ost>> {
        self.osts.load().iter().find(|o| o.index() == index).cloned()
    }

    /// All OSTs, ordered by index.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Ost>>> {
        self.osts.load_full()
    }

    /// Number of OSTs.
    pub(crate) fn len(&self) -> usize {
        self.osts.load().len()
    }

    /// Allocates the objects of a new file and returns its plain layout.
    ///
    /// # Errors
    ///
    /// As [`Osts::allocate_objects`].
    pub(crate) async fn allocate(&self, file: Fid, striping: &StripeRequest) -> Result<Bytes, Errno> {
        let striping = striping.clone().with_defaults(&self.default_striping.request());
        let objects = self.allocate_objects(file, &striping).await?;
        Ok(layout::build(file, striping.stripe_size, striping.pool, &objects))
    }

    /// Allocates objects for a file, after a recovery: as many as requested, or fewer if some OSTs
    /// have none. Waits while no OST has an object, or while one that the user chose has none.
    /// `ENOSPC` after [`ALLOCATE_TIMEOUT`], or earlier if the OSTs are full.
    pub(crate) async fn allocate_objects(
        &self,
        file: Fid,
        striping: &StripeRequest,
    ) -> Result<Vec<StripeObject>, Errno> {
        self.wait_may_create().await;
        // Each file takes one turn: a retry must not change the OSTs of later files.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.refresh_statfs().await;
        let mut result = self.try_allocate(striping, turn);
        if matches!(result, Err(Errno::ENOSPC | Errno::EROFS)) {
            // The OSTs may have more space now than at the last statfs.
            let _ = timeout(REFRESH_TIMEOUT, self.statfs()).await;
            result = self.try_allocate(striping, turn);
        }
        let allocation = match result? {
            Some(allocation) => allocation,
            None => match timeout(ALLOCATE_TIMEOUT, self.wait_and_allocate(striping, turn)).await {
                Ok(allocation) => allocation?,
                Err(_) => {
                    tracing::warn!(
                        "{}: no object for file {file} within {ALLOCATE_TIMEOUT:?}: no suitable OST has available objects. Check that the OSTs are connected and have space",
                        self.mdt
                    );
                    return Err(Errno::ENOSPC);
                }
            },
        };
        self.take_missing(allocation).await
    }

    /// Returns objects that no file uses to their OSTs.
    pub(crate) fn put_back(&self, objects: &[StripeObject]) {
        put_back(&self.all(), objects);
    }

    /// Extends the object that has the file's last byte in a new layout, so that the file keeps the
    /// size that it had without objects.
    ///
    /// # Errors
    ///
    /// The error of the OST; `ETIMEDOUT` if it does not answer; `ENODEV` if it is unknown.
    pub(crate) async fn extend(&self, lov: &[u8], size: u64) -> Result<(), Errno> {
        let Some((object, size)) = layout::last_object(lov, size)? else {
            return Ok(());
        };
        let ost = self.get(object.ost).ok_or(Errno::ENODEV)?;
        let extended = timeout(ALLOCATE_TIMEOUT, ost.extend(object.fid, size)).await;
        extended.unwrap_or(Err(Errno::ETIMEDOUT))
    }

    /// Prepares objects to move from one file to another: detaches each object from its file. The
    /// OST then assigns the object to the file that the next change of the object names. So both
    /// files stay usable even if a crash undoes the move. While the returned guards exist, the MDT
    /// sends no adoption ([`crate::store::Work::Adopt`]) to these OSTs.
    ///
    /// # Errors
    ///
    /// The error of an OST; `ETIMEDOUT` if one is not connected or does not answer.
    pub(crate) async fn detach_objects(
        &self,
        objects: &[StripeObject],
    ) -> Result<Vec<OwnedRwLockWriteGuard<()>>, Errno> {
        let begin = async {
            let indices: BTreeSet<OstIndex> = objects.iter().map(|o| o.ost).collect();
            let mut guards = Vec::with_capacity(indices.len());
            for index in &indices {
                // Check all connections first. Otherwise, the MDT could wait for one OST while it
                // holds the guard of another, and so delay the adoption_lock of the other.
                if !self.get(*index).ok_or(Errno::ENODEV)?.is_connected() {
                    return Err(Errno::ETIMEDOUT);
                }
            }
            for index in indices {
                let ost = self.get(index).ok_or(Errno::ENODEV)?;
                guards.push(ost.adoption_lock.clone().write_owned().await);
            }
            let mut requests = JoinSet::new();
            for object in objects.iter().copied() {
                let ost = self.get(object.ost).ok_or(Errno::ENODEV)?;
                requests.spawn(async move { ost.detach(object.fid).await });
            }
            while let Some(result) = requests.join_next().await {
                result.map_err(|_| Errno::EIO)??;
            }
            Ok(guards)
        };
        let result = timeout(ALLOCATE_TIMEOUT, begin).await;
        result.unwrap_or(Err(Errno::ETIMEDOUT))
    }

    /// Retries whenever an OST has available objects again, without a time limit.
    async fn wait_and_allocate(&self, striping: &StripeRequest, turn: u64) -> Result<Allocation, Errno> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut wakeup = self.wakeup.subscribe();
        loop {
            wakeup.borrow_and_update();
            if let Some(allocation) = self.try_allocate(striping, turn)? {
                return Ok(allocation);
            }
            // This struct owns the sender, so the wait cannot fail.
            wakeup.changed().await.map_err(|_| Errno::ESHUTDOWN)?;
        }
    }

    /// Takes objects without waiting; `None` if no OST has an object, or if one that the user chose
    /// has none.
    fn try_allocate(&self, striping: &StripeRequest, turn: u64) -> Result<Option<Allocation>, Errno> {
        let osts = self.all();
        let candidates: Vec<Candidate> = osts.iter().map(|o| o.candidate()).collect();
        let mut order = lod::ost_order(&candidates, striping, turn)?;
        let count = striping.stripe_count_on(osts.len()).max(1);
        if striping.overstriping && striping.osts.is_empty() {
            order = lod::overstripe(&order, count, osts.len());
        }
        let mut objects = Vec::with_capacity(count);
        for (position, &index) in order.iter().enumerate() {
            let ost = osts.iter().find(|o| o.index() == index).ok_or(Errno::EINVAL)?;
            match ost.take() {
                Ok(Some(fid)) => objects.push(StripeObject { ost: index, fid }),
                // An OST may have fewer objects ready than an overstriped file needs.
                Ok(None) if striping.overstriping && !objects.is_empty() => {
                    let missing = order.split_off(position);
                    return Ok(Some(Allocation { objects, missing }));
                }
                // No other OST replaces one that the user chose.
                Ok(None) if !striping.osts.is_empty() || striping.first == Some(index) => {
                    put_back(&osts, &objects);
                    return Ok(None);
                }
                Ok(None) => {}
                Err(e) => {
                    put_back(&osts, &objects);
                    return Err(e);
                }
            }
            if objects.len() == count {
                break;
            }
        }
        // As in Lustre, a file gets fewer stripes if some OSTs have no object.
        let missing = Vec::new();
        Ok((!objects.is_empty()).then_some(Allocation { objects, missing }))
    }

    /// All objects of an allocation: takes the missing ones as their OSTs create them. The file
    /// gets fewer stripes if the OSTs create too few within [`ALLOCATE_TIMEOUT`].
    async fn take_missing(&self, allocation: Allocation) -> Result<Vec<StripeObject>, Errno> {
        let Allocation { mut objects, missing } = allocation;
        if missing.is_empty() {
            return Ok(objects);
        }
        let osts = self.all();
        let mut wakeup = self.wakeup.subscribe();
        let take_all = async {
            for index in missing {
                let ost = osts.iter().find(|o| o.index() == index).ok_or(Errno::EINVAL)?;
                let fid = loop {
                    wakeup.borrow_and_update();
                    if let Some(fid) = ost.take()? {
                        break fid;
                    }
                    // This struct owns the sender, so the wait cannot fail.
                    wakeup.changed().await.map_err(|_| Errno::ESHUTDOWN)?;
                };
                objects.push(StripeObject { ost: index, fid });
            }
            Ok(())
        };
        if let Ok(Err(e)) = timeout(ALLOCATE_TIMEOUT, take_all).await {
            put_back(&osts, &objects);
            return Err(e);
        }
        Ok(objects)
    }

    /// Number of creates that had to wait for objects.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Requests a statfs from each OST with one that is too old for a create. Usually there are no
    /// such OSTs, because the tasks of the OSTs in use do the same.
    async fn refresh_statfs(&self) {
        let osts = self.all();
        if !osts.iter().any(|ost| ost.needs_statfs()) {
            return;
        }
        let mut requests = JoinSet::new();
        for ost in osts.iter().filter(|ost| ost.needs_statfs()) {
            let ost = ost.clone();
            requests.spawn(async move { ost.refresh_statfs().await });
        }
        requests.join_all().await;
    }

    /// The statfs of all OSTs ([`Ost::statfs`]).
    pub(crate) async fn statfs(&self) -> Vec<ObdStatfs> {
        let mut requests = JoinSet::new();
        for ost in self.all().iter() {
            let ost = ost.clone();
            requests.spawn(async move { ost.statfs().await });
        }
        requests.join_all().await.into_iter().flatten().collect()
    }

    /// Stops all OSTs ([`Ost::stop`]). Records a clean stop if all their records are stored and the
    /// scan for orphan objects of this start is complete (`is_scanned`).
    pub(crate) async fn stop(&self, is_scanned: bool) {
        let osts = self.osts.swap(Arc::default());
        self.groups.lock().clear();
        let mut is_clean = is_scanned;
        for ost in osts.iter() {
            is_clean &= ost.stop().await;
        }
        if !is_clean {
            tracing::warn!(
                "{}: the stop is not clean, so the next start scans for orphan objects",
                self.mdt
            );
        } else if let Err(e) = orphans::record_clean_stop(&self.store) {
            tracing::warn!(
                "{}: cannot record a clean stop; the next start scans for orphan objects: {e}",
                self.mdt
            );
        }
    }
}

/// Returns objects that no file uses to their OSTs.
fn put_back(osts: &[Arc<Ost>], objects: &[StripeObject]) {
    for object in objects {
        if let Some(ost) = osts.iter().find(|o| o.index() == object.ost) {
            ost.put_back(object.fid);
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
    use testbase::Wait;

    use mgc::{FsConfig, TargetConf};
    use osd::{Index, MemoryIndex};
    use tokio::time::timeout;
    use wire::{Fid, OstIndex};

    use super::{
        Osts,
        orphans::unverified_ids,
        pool::{LastUsedId, Pool},
    };
    use crate::{
        layout::StripeRequest,
        store::{Change, Store, keys},
    };
    use testbase::{InstrumentedIndex, rpc_node};

    /// Time to poll a create. No OST exists, so the create can never finish.
    const POLL_TIME: Duration = Duration::from_millis(1);

    fn osts_on(index: Arc<dyn Index>) -> Osts {
        let store = Arc::new(Store::new(index));
        Osts::new(
            rpc_node::node(1),
            store,
            "testfs-MDT0000".into(),
            Default::default(),
        )
    }

    /// Stops an OST with an unused object. The first `failures` writes to the store fail. Returns
    /// whether the next start scans for orphan objects.
    async fn stop_makes_next_start_scan(failures: usize) -> bool {
        let index = Arc::new(InstrumentedIndex::default());
        let osts = osts_on(index.clone());
        let last_used = LastUsedId {
            seq: 0x2_4000_0400,
            used: 5,
        };
        let mut change = Change::new();
        change.set_record(keys::objects(OstIndex(0)), last_used.encode());
        osts.store.apply(change).wait().unwrap();
        let target = TargetConf {
            name: "testfs-OST0000".into(),
            index: 0,
            uuid: "testfs-OST0000_UUID".into(),
            nids: vec![],
            active: true,
        };
        let config = FsConfig {
            osts: vec![target],
            ..FsConfig::default()
        };
        osts.apply_config(&config, Duration::ZERO).await.unwrap();
        let unused = Pool::new(last_used).last_allocated();
        osts.get(OstIndex(0)).unwrap().put_back(unused);
        index.failures.store(failures, Ordering::SeqCst);
        osts.stop(true).await;
        !unverified_ids(&osts.store).wait().unwrap().is_empty()
    }

    #[tokio::test]
    async fn stop_is_clean_only_if_every_ost_has_stored_its_changes() {
        assert!(!stop_makes_next_start_scan(0).await);
        for failures in 1..=3 {
            assert!(stop_makes_next_start_scan(failures).await, "{failures} failures");
        }
    }

    #[tokio::test]
    async fn waiting_create_takes_one_turn() {
        let osts = osts_on(Arc::new(MemoryIndex::default()));
        let striping = StripeRequest::default();
        let create = osts.allocate(Fid::new(0x2_0000_0400, 1, 0), &striping);
        tokio::pin!(create);
        for _ in 0..3 {
            assert!(timeout(POLL_TIME, &mut create).await.is_err(), "still waiting");
            osts.wakeup.send_replace(());
        }
        assert_eq!(osts.waits(), 1);
        assert_eq!(osts.turn.load(Ordering::Relaxed), 1);
    }
}
