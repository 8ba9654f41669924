//! The connect data that a server granted. Almost every request reads some of it, so the parts that
//! requests need are in atomics.

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use wire::{LockTerms, OBD_CONNECT_FLAGS2, ObdConnectData, Precision};

/// The granted connect data of an import or export; nothing is granted at first.
///
/// A request that runs during a reconnect may see parts of the old and the new data. The two differ
/// only if the server changed meanwhile, and then the client resends the request.
#[derive(Debug, Default)]
pub(crate) struct Granted {
    data: ArcSwap<ObdConnectData>,
    flags: AtomicU64,
    /// 0 unless `OBD_CONNECT_FLAGS2` is granted.
    flags2: AtomicU64,
    nanoseconds: AtomicBool,
    own_lock_terms: AtomicBool,
    /// Serializes calls of [`Granted::change`].
    changing: Mutex<()>,
}

impl Granted {
    /// Replaces the data.
    pub(crate) fn set(&self, data: ObdConnectData) {
        self.change(|_| data);
    }

    /// Changes the data.
    pub(crate) fn change(&self, change: impl FnOnce(ObdConnectData) -> ObdConnectData) {
        let _changing = self.changing.lock();
        let data = change(self.data());
        let flags2 = match data.ocd_connect_flags & OBD_CONNECT_FLAGS2 {
            0 => 0,
            _ => data.ocd_connect_flags2,
        };
        self.flags.store(data.ocd_connect_flags, Relaxed);
        self.flags2.store(flags2, Relaxed);
        self.nanoseconds
            .store(Precision::agreed(&data) == Precision::Nanoseconds, Relaxed);
        self.own_lock_terms
            .store(LockTerms::agreed(&data) == LockTerms::Nacre, Relaxed);
        self.data.store(Arc::new(data));
    }

    /// All of the data.
    pub(crate) fn data(&self) -> ObdConnectData {
        **self.data.load()
    }

    /// `ocd_connect_flags`
    pub(crate) fn flags(&self) -> u64 {
        self.flags.load(Relaxed)
    }

    /// `ocd_connect_flags2`; 0 unless `OBD_CONNECT_FLAGS2` is granted.
    pub(crate) fn flags2(&self) -> u64 {
        self.flags2.load(Relaxed)
    }

    /// The precision of times.
    pub(crate) fn precision(&self) -> Precision {
        match self.nanoseconds.load(Relaxed) {
            true => Precision::Nanoseconds,
            false => Precision::Seconds,
        }
    }

    /// The terms of the client's locks.
    pub(crate) fn lock_terms(&self) -> LockTerms {
        match self.own_lock_terms.load(Relaxed) {
            true => LockTerms::Nacre,
            false => LockTerms::Lustre,
        }
    }
}
