//! The policy data of a lock: a union of 32 bytes, selected by the type of the lock's resource.

use crate::codec::{Reader, Result, Writer};
use crate::layout::{Shape, WireField};

/// `ldlm_wire_policy_data`: the words of an extent, a set of inode bits or a flock range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LdlmPolicyData(pub [u64; 4]);

impl LdlmPolicyData {
    /// Bytes `start` to `end` (inclusive) of an object, for the group `gid` (0: no group lock).
    pub const fn extent(start: u64, end: u64, gid: u64) -> Self {
        Self([start, end, gid, 0])
    }

    /// Inode bits that the lock must have, and optional ones.
    pub const fn inodebits(bits: u64, try_bits: u64) -> Self {
        Self([bits, try_bits, 0, 0])
    }

    /// Bytes `start` to `end` (inclusive) of a file, for the lock owner `owner` in the process
    /// `pid`.
    pub const fn flock(start: u64, end: u64, owner: u64, pid: u32) -> Self {
        Self([start, end, owner, (pid as u64) << 32])
    }

    /// First byte of an extent or a flock range.
    pub const fn start(&self) -> u64 {
        self.0[0]
    }

    /// Last byte of an extent or a flock range.
    pub const fn end(&self) -> u64 {
        self.0[1]
    }

    /// Group of an extent lock; 0 if it is no group lock.
    pub const fn gid(&self) -> u64 {
        self.0[2]
    }

    /// Inode bits that the lock must have.
    pub const fn bits(&self) -> u64 {
        self.0[0]
    }

    /// Optional inode bits.
    pub const fn try_bits(&self) -> u64 {
        self.0[1]
    }

    /// In a blocking callback: the inode bits to cancel (stored in the same place as
    /// [`Self::try_bits`]).
    pub const fn cancel_bits(&self) -> u64 {
        self.0[1]
    }

    /// In an inode-bits lock: the id of the requesting client (`li_initiator_id`).
    pub const fn initiator_id(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }

    /// Owner of a flock range.
    pub const fn owner(&self) -> u64 {
        self.0[2]
    }

    /// Process id of the owner of a flock range.
    pub const fn pid(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }
}

impl WireField for LdlmPolicyData {
    const BYTES: usize = 32;
    const ZERO: Self = LdlmPolicyData([0; 4]);
    const SHAPE: Shape = <[u64; 4]>::SHAPE;
    fn read_field(r: &mut Reader<'_>) -> Result<Self> {
        <[u64; 4]>::read_field(r).map(LdlmPolicyData)
    }
    fn write_field(&self, w: &mut Writer) {
        self.0.write_field(w);
    }
}
