//! A lock on the server, and the table of a shard's locks.
//!
//! A lock's id is its handle on the wire. From the lowest bits up, it has the shard (8 bits), the
//! slot in the shard's table (24 bits), and a serial number (31 bits), which is never 0 and differs
//! from the numbers of earlier locks in the slot. So a handle leads to its lock without a map, and
//! a stale handle is recognized. The highest bit is never set: the MDT sets it in the cookies of
//! open files, which a request may list together with lock handles.

use crate::action::LockRequest;
use crate::mode::LockMode;
use crate::policy::Policy;
use std::fmt;
use wire::{LdlmLockDesc, LdlmResId, LdlmResourceDesc};

/// A lock's handle, the server's cookie in the protocol. Zero only before the lock is in a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u64);

const SHARD_BITS: u32 = 8;
const SLOT_BITS: u32 = 24;
/// Number of slots that a handle can name. The last one holds no lock: transient handles name it.
const SLOTS_MAX: u32 = 1 << SLOT_BITS;
const SERIAL_MAX: u32 = u32::MAX >> 1;

impl LockId {
    /// Number of shards that a handle can name.
    pub const SHARDS_MAX: usize = 1 << SHARD_BITS;

    fn new(shard: u8, slot: u32, serial: u32) -> LockId {
        LockId(
            (u64::from(serial) << (SHARD_BITS + SLOT_BITS))
                | (u64::from(slot) << SHARD_BITS)
                | u64::from(shard),
        )
    }

    /// The lock's shard.
    pub const fn shard(self) -> usize {
        (self.0 & (Self::SHARDS_MAX as u64 - 1)) as usize
    }

    pub(crate) fn slot(self) -> usize {
        ((self.0 >> SHARD_BITS) & u64::from(SLOTS_MAX - 1)) as usize
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The client that holds or requests a lock, by the handle of its export, or the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u64);

impl Holder {
    /// The server itself: it gets no callbacks, and releases its locks when it has finished.
    pub const SERVER: Holder = Holder(0);
}

/// How the grant of a waiting lock is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// By a completion AST to the client.
    Client,
    /// By waking the task in this process that waits for the lock.
    Local,
}

/// One lock.
#[derive(Clone, Debug)]
pub struct Lock {
    /// The server's handle.
    pub id: LockId,
    /// The client that holds or requests the lock, or the server itself.
    pub holder: Holder,
    /// The client's cookie for the lock; 0 for the server's own locks.
    pub cookie: u64,
    /// The resource.
    pub res: LdlmResId,
    /// The locked part of the resource.
    pub policy: Policy,
    /// The mode.
    pub mode: LockMode,
    /// Whether the lock is granted; otherwise it waits in its resource's queue.
    pub granted: bool,
    /// The lock is revoked, by a blocking AST or by the completion AST that grants it. Also set for
    /// a lock of the server itself that blocks another, although the server sends itself no AST.
    pub ast_sent: bool,
    /// The lock is dropped as soon as it blocks another (`LDLM_FL_CANCEL_ON_BLOCK`).
    pub cancel_on_block: bool,
    /// The extent is granted exactly as requested (`LDLM_FL_NO_EXPANSION`).
    pub no_expansion: bool,
    /// If this lock has to wait, the blocking ASTs to the holders of the conflicting locks tell
    /// them to discard dirty data.
    pub discard: bool,
    /// A deadlock of the waiting flock can be reported (`OBD_CONNECT_FLOCK_DEAD`).
    pub report_deadlock: bool,
    /// The client for which the server takes the lock: that client's locks do not conflict with
    /// this one. [`Holder::SERVER`] if there is no such client.
    pub on_behalf: Holder,
    /// How the grant is reported.
    pub waiter: Waiter,
    /// The client has replayed the lock after a restart of the server.
    pub replayed: bool,
    /// Index in the resource's list of granted locks; only for granted locks.
    pub(crate) granted_index: u32,
}

impl Lock {
    /// The lock of a request, not yet in a table.
    pub(crate) fn from_request(request: &LockRequest) -> Lock {
        Lock {
            id: LockId(0),
            holder: request.holder,
            cookie: request.cookie,
            res: request.res,
            policy: request.policy,
            mode: request.mode,
            granted: false,
            ast_sent: false,
            cancel_on_block: request.cancel_on_block,
            no_expansion: request.no_expansion,
            discard: request.discard,
            report_deadlock: request.report_deadlock,
            on_behalf: request.on_behalf,
            waiter: request.waiter,
            replayed: false,
            granted_index: 0,
        }
    }

    /// Whether the server takes this lock on behalf of the other lock's holder.
    pub(crate) fn is_on_behalf_of(&self, other: &Lock) -> bool {
        self.on_behalf != Holder::SERVER && self.on_behalf == other.holder
    }

    /// The lock as the wire describes it.
    pub fn desc(&self) -> LdlmLockDesc {
        LdlmLockDesc {
            l_resource: LdlmResourceDesc {
                lr_type: self.policy.ty().wire(),
                lr_pad: 0,
                lr_name: self.res,
            },
            l_req_mode: self.mode.wire(),
            l_granted_mode: if self.granted { self.mode.wire() } else { 0 },
            l_policy_data: self.policy.to_wire(),
        }
    }
}

/// The locks of a shard, in reused slots.
#[derive(Debug)]
pub(crate) struct LockTable {
    slots: Vec<Option<Lock>>,
    /// The empty slots.
    free: Vec<u32>,
    shard: u8,
    /// The last assigned serial number.
    serial: u32,
}

impl LockTable {
    /// An empty table. `seed` sets the first serial number: if it is random, handles from before a
    /// restart of the server hardly ever name a new lock.
    pub(crate) fn new(shard: u8, seed: u64) -> LockTable {
        LockTable {
            slots: Vec::new(),
            free: Vec::new(),
            shard,
            serial: (seed ^ (seed >> 32)) as u32 & SERIAL_MAX,
        }
    }

    /// Up to `max` slots starting at `from`.
    pub(crate) fn slots_from(&self, from: usize, max: usize) -> &[Option<Lock>] {
        let (_, rest) = self.slots.split_at(from.min(self.slots.len()));
        rest.split_at(max.min(rest.len())).0
    }

    /// Number of slots, including empty ones.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether one more lock fits.
    pub(crate) fn has_free_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < SLOTS_MAX as usize - 1
    }

    /// The next serial number: never 0, at most `SERIAL_MAX`.
    fn next_serial(&mut self) -> u32 {
        self.serial = (self.serial.wrapping_add(1) & SERIAL_MAX).max(1);
        self.serial
    }

    /// Inserts a lock and assigns its id. `None` if the table is full.
    pub(crate) fn insert(&mut self, mut lock: Lock) -> Option<LockId> {
        let serial = self.next_serial();
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len())
                    .ok()
                    .filter(|s| *s < SLOTS_MAX - 1)?;
                self.slots.push(None);
                slot
            }
        };
        lock.id = LockId::new(self.shard, slot, serial);
        let id = lock.id;
        self.slots[slot as usize] = Some(lock);
        Some(id)
    }

    /// A handle for the reply to a request that creates no lock (an unlock, a test). Its slot never
    /// holds a lock.
    pub(crate) fn transient_id(&mut self) -> LockId {
        let serial = self.next_serial();
        LockId::new(self.shard, SLOTS_MAX - 1, serial)
    }

    pub(crate) fn get(&self, id: LockId) -> Option<&Lock> {
        self.slots.get(id.slot())?.as_ref().filter(|l| l.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: LockId) -> Option<&mut Lock> {
        self.slots.get_mut(id.slot())?.as_mut().filter(|l| l.id == id)
    }

    pub(crate) fn remove(&mut self, id: LockId) -> Option<Lock> {
        self.get(id)?;
        let slot = id.slot();
        let lock = self.slots.get_mut(slot)?.take();
        self.free.push(slot as u32);
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::{LockTable, SERIAL_MAX};

    #[test]
    fn handles_are_unique_and_keep_the_highest_bit_clear() {
        for seed in [
            0,
            1 << 31,
            u64::from(SERIAL_MAX) - 2,
            u64::from(u32::MAX) - 2,
            u64::MAX,
        ] {
            let mut table = LockTable::new(0, seed);
            let ids: Vec<u64> = (0..6).map(|_| table.transient_id().0).collect();
            for (n, id) in ids.iter().enumerate() {
                let serial = id >> 32;
                assert!(
                    serial != 0 && serial <= u64::from(SERIAL_MAX),
                    "{seed:#x}: {id:#x}"
                );
                assert!(!ids[..n].contains(id), "{seed:#x}: {id:#x}");
            }
        }
    }
}
