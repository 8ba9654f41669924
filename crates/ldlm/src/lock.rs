//! One lock as a server knows it, and the table of all locks of a shard.
//!
//! A lock's id is its handle on the wire: the low byte is the shard, then the place in the shard's table, then a
//! number that no other lock of this place had, which is never 0; the highest bit is never set. So a handle leads to its lock
//! without a map, and a handle of the past leads nowhere.

use crate::action::NewLock;
use crate::mode::LockMode;
use crate::policy::Policy;
use std::fmt;
use wire::{LdlmLockDesc, LdlmResId, LdlmResourceDesc};

/// A lock's handle: what the protocol calls the server's cookie. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u64);

const SHARD_BITS: u32 = 8;
const SLOT_BITS: u32 = 24;
const SLOTS_MAX: u32 = 1 << SLOT_BITS;
const SERIAL_MAX: u32 = u32::MAX >> 1;

impl LockId {
    /// How many shards a handle can name.
    pub const SHARDS_MAX: usize = 1 << SHARD_BITS;

    fn new(shard: u8, slot: u32, serial: u32) -> LockId {
        LockId(
            (u64::from(serial) << (SHARD_BITS + SLOT_BITS))
                | (u64::from(slot) << SHARD_BITS)
                | u64::from(shard),
        )
    }

    /// The shard that the lock lives in.
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

/// Who holds a lock: a client's export by its handle, or the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u64);

impl Holder {
    /// The server itself: nobody sends it callbacks, it lets go by itself.
    pub const SERVER: Holder = Holder(0);
}

/// Who learns of it when a queued lock is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// The client, by a completion callback.
    Client,
    /// Code in this process.
    Local,
}

/// One lock.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Its handle.
    pub id: LockId,
    /// Who holds it.
    pub holder: Holder,
    /// The holder's own cookie for it.
    pub cookie: u64,
    /// Of what.
    pub res: LdlmResId,
    /// What it covers.
    pub policy: Policy,
    /// How.
    pub mode: LockMode,
    /// Granted, or waiting in its resource's queue.
    pub granted: bool,
    /// The holder was told that the lock is in the way.
    pub ast_sent: bool,
    /// The lock goes away as soon as the holder is told (`LDLM_FL_CANCEL_ON_BLOCK`).
    pub cancel_on_block: bool,
    /// It is granted exactly as it was asked for (`LDLM_FL_NO_EXPANSION`).
    pub no_expansion: bool,
    /// Holders in its way need not write back first.
    pub discard: bool,
    /// A waiting flock that is found in a deadlock can be told so (`OBD_CONNECT_FLOCK_DEAD`).
    pub tell_deadlock: bool,
    /// Whose locks it does not exclude, though they are in its way; [`Holder::SERVER`]: nobody's.
    pub on_behalf: Holder,
    /// Who learns of the grant.
    pub waiter: Waiter,
    /// Place in the resource's list of granted locks.
    pub(crate) place: u32,
}

impl Lock {
    /// The lock that a request asks for, not yet in any table.
    pub(crate) fn of(new: &NewLock) -> Lock {
        Lock {
            id: LockId(0),
            holder: new.holder,
            cookie: new.cookie,
            res: new.res,
            policy: new.policy,
            mode: new.mode,
            granted: false,
            ast_sent: false,
            cancel_on_block: new.cancel_on_block,
            no_expansion: new.no_expansion,
            discard: new.discard,
            tell_deadlock: new.tell_deadlock,
            on_behalf: new.on_behalf,
            waiter: new.waiter,
            place: 0,
        }
    }

    /// Whether the server holds it for the other one's holder.
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

/// All locks of a shard, in slots that are used again.
#[derive(Debug)]
pub(crate) struct LockTable {
    slots: Vec<Option<Lock>>,
    free: Vec<u32>,
    shard: u8,
    serial: u32,
}

impl LockTable {
    /// An empty table; `seed` keeps its handles apart from those of an earlier life of the server.
    pub(crate) fn new(shard: u8, seed: u64) -> LockTable {
        LockTable {
            slots: Vec::new(),
            free: Vec::new(),
            shard,
            serial: (seed ^ (seed >> 32)) as u32 & SERIAL_MAX,
        }
    }

    /// Up to `most` slots from this one on.
    pub(crate) fn window(&self, from: usize, most: usize) -> &[Option<Lock>] {
        let (_, rest) = self.slots.split_at(from.min(self.slots.len()));
        rest.split_at(most.min(rest.len())).0
    }

    /// How many slots there are, empty ones included.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether one more lock fits.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < SLOTS_MAX as usize - 1
    }

    /// What tells a lock from all before it: never 0, never more than fits.
    fn next_serial(&mut self) -> u32 {
        self.serial = (self.serial.wrapping_add(1) & SERIAL_MAX).max(1);
        self.serial
    }

    /// Puts a lock in, with an id made for it. `None` when the table is full.
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

    /// An id for a lock that is over as soon as it is answered (an unlock, a test): of a slot that is never used.
    pub(crate) fn passing_id(&mut self) -> LockId {
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
    fn no_handle_is_nothing_or_an_open_files_whatever_the_seed_is() {
        for seed in [
            0,
            1 << 31,
            u64::from(SERIAL_MAX) - 2,
            u64::from(u32::MAX) - 2,
            u64::MAX,
        ] {
            let mut table = LockTable::new(0, seed);
            let ids: Vec<u64> = (0..6).map(|_| table.passing_id().0).collect();
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
