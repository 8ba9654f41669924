//! The parts of the target in which clients hold something, and the requests of new clients while
//! clients of an earlier start recover (docs/protocol.md, "Recovery").
//!
//! A part has neighbouring objects, so that a client that writes many new files needs few records.
//! Locks claim their objects themselves ([`ldlm::LockServer`]); this module has the other requests.
//! A request of a kind that is not listed waits for the end of the recovery.

use rpc::{Access, Part, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, Fid, LDLM_CANCEL, LDLM_CONVERT, LDLM_ENQUEUE, LdlmResId, OST_FALLOCATE, OST_GETATTR, OST_PUNCH,
    OST_READ, OST_SEEK, OST_SET_INFO, OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE, OstBody, OstId,
};

use crate::{Ost, sequence::Sequences};

/// A part has 2 to this power objects.
const PART_BITS: u32 = 10;
/// A group has 2 to this power objects.
const GROUP_BITS: u32 = 14;
/// Bits for the group within its sequence.
const SEQUENCE_SHIFT: u32 = u32::BITS - GROUP_BITS;

/// The part of the target to which an object belongs.
pub(crate) fn part_of(fid: Fid, sequences: &Sequences) -> Part {
    Part {
        group: (fid.f_seq << SEQUENCE_SHIFT) | u64::from(fid.f_oid >> GROUP_BITS),
        member: fid.f_oid >> PART_BITS,
        is_new: sequences.is_new(&fid),
    }
}

/// The part of the target to which the resource of a lock belongs.
pub(crate) fn part_of_resource(res: &LdlmResId, sequences: &Sequences) -> Part {
    let [oi_id, oi_seq, ..] = res.name;
    part_of(sequences.fid(&OstId { oi_id, oi_seq }), sequences)
}

impl Ost {
    /// Claims the object of a client's request ([`rpc::Export::claim`]) before the handler runs. A
    /// request that changes nothing leaves nothing behind: it only waits.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the request is malformed, and the errors of [`rpc::Export::claim`].
    pub(crate) async fn claim(&self, req: &ServerRequest) -> Result<(), Errno> {
        let access = match req.opc {
            OST_WRITE | OST_PUNCH | OST_SETATTR | OST_FALLOCATE => Access::Write,
            _ if !req.export.is_newcomer() => return Ok(()),
            OST_READ | OST_GETATTR | OST_SEEK | OST_SYNC => Access::Read,
            LDLM_ENQUEUE | LDLM_CANCEL | LDLM_CONVERT | OST_STATFS | OST_SET_INFO => return Ok(()),
            _ => return req.export.wait_until_recovered().await,
        };
        let id = req.get::<OstBody>(bufs::OST_BODY)?.oa.o_oi;
        let part = part_of(self.sequences.fid(&id), &self.sequences);
        match access {
            Access::Read => req.export.wait_until_free(part, access).await,
            Access::Write => req.export.claim(part, access).await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use osd::MemoryIndex;
    use wire::{Fid, OstIndex};

    use super::{Sequences, part_of};

    #[tokio::test]
    async fn neighbouring_objects_share_a_part_and_sequences_share_no_group() {
        let index = Arc::new(MemoryIndex::default());
        let sequences = Sequences::open(index, "t", OstIndex(0)).await.unwrap();
        let part = |seq, oid| part_of(Fid::new(seq, oid, 0), &sequences);
        let seq = 0x2_c000_0400;
        assert_eq!(part(seq, 1), part(seq, 1023));
        assert_ne!(part(seq, 1023), part(seq, 1024));
        assert_eq!(part(seq, 1023).group, part(seq, 1 << 13).group);
        let groups = [
            part(seq, 1),
            part(seq, 1 << 14),
            part(seq + 1, 1),
            part(seq - 1, u32::MAX),
        ];
        let mut groups = groups.map(|part| part.group);
        groups.sort_unstable();
        assert!(groups.windows(2).all(|pair| pair[0] != pair[1]), "{groups:x?}");
    }
}
