//! The part of a resource that a lock covers: the whole resource, an extent, inode bits, or an
//! owner's file range.

use wire::LdlmPolicyData;

/// The type of a resource's locks; the discriminants are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum LockType {
    /// The whole resource (configuration, quota).
    Plain = 10,
    /// A byte range of an object.
    Extent = 11,
    /// A byte range of a file, as with `fcntl` and `flock`.
    Flock = 12,
    /// Parts of an inode.
    Ibits = 13,
}

impl LockType {
    /// The wire's number of the type.
    pub const fn wire(self) -> u32 {
        self as u32
    }

    /// The type of a wire number; `None` if it is invalid.
    pub fn from_wire(ty: u32) -> Option<LockType> {
        match ty {
            10 => Some(LockType::Plain),
            11 => Some(LockType::Extent),
            12 => Some(LockType::Flock),
            13 => Some(LockType::Ibits),
            _ => None,
        }
    }
}

/// The bytes from `start` to `end` inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Group of a group lock, else 0.
    pub gid: u64,
}

impl Extent {
    /// The whole object.
    pub const WHOLE: Extent = Extent {
        start: 0,
        end: wire::OBD_OBJECT_EOF,
        gid: 0,
    };

    /// Whether the extents have a byte in common.
    pub const fn overlaps(&self, other: &Extent) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether `other` is within this extent.
    pub const fn contains(&self, other: &Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// Inode bits: required ones and optional ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ibits {
    /// `MDS_INODELOCK_*` bits that the lock waits for; once granted, all bits of the lock.
    pub bits: u64,
    /// `MDS_INODELOCK_*` bits that are granted only if they are free. Zero once granted.
    pub try_bits: u64,
}

/// An owner's range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// The owner, an opaque number of the client.
    pub owner: u64,
    /// The owner's process, for `F_GETLK` and deadlock detection; 0 if unknown.
    pub pid: u32,
}

impl Flock {
    /// Whether the ranges have a byte in common.
    pub const fn overlaps(&self, other: &Flock) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// The locked part of a resource; the variant is the type of the resource's locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The whole resource.
    Plain,
    /// A byte range.
    Extent(Extent),
    /// Inode bits.
    Ibits(Ibits),
    /// An owner's file range.
    Flock(Flock),
}

impl Policy {
    /// The bytes from `start` to `end` inclusive.
    pub const fn extent(start: u64, end: u64) -> Policy {
        Policy::Extent(Extent { start, end, gid: 0 })
    }

    /// Inode bits.
    pub const fn ibits(bits: u64) -> Policy {
        Policy::Ibits(Ibits { bits, try_bits: 0 })
    }

    /// The type of the lock.
    pub const fn ty(&self) -> LockType {
        match self {
            Policy::Plain => LockType::Plain,
            Policy::Extent(_) => LockType::Extent,
            Policy::Ibits(_) => LockType::Ibits,
            Policy::Flock(_) => LockType::Flock,
        }
    }

    /// The inode bits; 0 for other types.
    pub const fn bits(&self) -> u64 {
        match self {
            Policy::Ibits(i) => i.bits,
            _ => 0,
        }
    }

    /// Whether the lock protects data, so that replies describe the data by a value block: extent
    /// locks, and locks on the DOM bit alone.
    pub const fn has_value_block(&self) -> bool {
        match self {
            Policy::Extent(_) => true,
            Policy::Ibits(i) => i.bits == wire::MDS_INODELOCK_DOM && i.try_bits == 0,
            Policy::Plain | Policy::Flock(_) => false,
        }
    }

    /// Reads the wire's union for a type; `None` if its range ends before it starts.
    pub fn from_wire(ty: LockType, data: &LdlmPolicyData) -> Option<Policy> {
        let (start, end) = (data.start(), data.end());
        match ty {
            LockType::Plain => Some(Policy::Plain),
            LockType::Ibits => Some(Policy::Ibits(Ibits {
                bits: data.bits(),
                try_bits: data.try_bits(),
            })),
            _ if start > end => None,
            LockType::Extent => Some(Policy::Extent(Extent {
                start,
                end,
                gid: data.gid(),
            })),
            LockType::Flock => Some(Policy::Flock(Flock {
                start,
                end,
                owner: data.owner(),
                pid: data.pid(),
            })),
        }
    }

    /// The wire's union.
    pub fn to_wire(&self) -> LdlmPolicyData {
        match self {
            Policy::Plain => LdlmPolicyData::default(),
            Policy::Extent(e) => LdlmPolicyData::extent(e.start, e.end, e.gid),
            Policy::Ibits(i) => LdlmPolicyData::inodebits(i.bits, i.try_bits),
            Policy::Flock(f) => LdlmPolicyData::flock(f.start, f.end, f.owner, f.pid),
        }
    }

    /// Whether a granted lock with this policy includes `want`, except its optional inode bits;
    /// always false for flocks.
    pub fn covers(&self, want: &Policy) -> bool {
        match (self, want) {
            (Policy::Plain, Policy::Plain) => true,
            (Policy::Extent(have), Policy::Extent(want)) => have.contains(want) && have.gid == want.gid,
            (Policy::Ibits(have), Policy::Ibits(want)) => have.bits & want.bits == want.bits,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Extent, Flock, LockType, Policy};

    #[test]
    fn policies_round_trip() {
        let all = [
            Policy::Plain,
            Policy::Extent(Extent {
                start: 4096,
                end: 8191,
                gid: 7,
            }),
            Policy::ibits(0x13),
            Policy::Flock(Flock {
                start: 1,
                end: 2,
                owner: 0xffff_8880_0000_0001,
                pid: 4711,
            }),
        ];
        for p in all {
            assert_eq!(Policy::from_wire(p.ty(), &p.to_wire()), Some(p));
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let backwards = wire::LdlmPolicyData::extent(5, 4, 0);
        assert_eq!(Policy::from_wire(LockType::Extent, &backwards), None);
        assert_eq!(Policy::from_wire(LockType::Flock, &backwards), None);
    }

    #[test]
    fn a_wider_lock_covers_a_narrower_request() {
        assert!(Policy::extent(0, 100).covers(&Policy::extent(10, 100)));
        assert!(!Policy::extent(0, 100).covers(&Policy::extent(10, 101)));
        assert!(Policy::ibits(0x13).covers(&Policy::ibits(0x3)));
        assert!(!Policy::ibits(0x13).covers(&Policy::ibits(0x4)));
    }
}
