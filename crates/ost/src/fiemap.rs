//! `OST_GET_INFO` with the key `fiemap`: lists the extents of an object that hold data.
//!
//! The store distinguishes data from holes but does not know the physical address of data, so every
//! extent is marked `FIEMAP_EXTENT_UNKNOWN`.

use ldlm::{LockMode, Policy};
use osd::{OsdError, Seek};
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, FIEMAP_EXTENT_LAST, FIEMAP_EXTENT_UNKNOWN, Fid, Fiemap, FiemapExtent, LlFiemapInfoKey,
    OBD_FL_SRVLOCK, OBD_MD_FLFLAGS, WireStruct,
};

use crate::Ost;

/// The largest number of extents in one reply. Lustre's clients request as many as fit into 4096
/// bytes, and send another request for the rest.
const EXTENTS_MAX: u32 = 1024;

impl Ost {
    pub(crate) async fn fiemap(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let key: LlFiemapInfoKey = req.get(bufs::FIEMAP_KEY)?;
        let (request, oa) = (key.lfik_fiemap, key.lfik_oa);
        if request.fm_extent_count > EXTENTS_MAX {
            return Err(Errno::EINVAL);
        }
        let fid = self.object(&oa.o_oi)?;
        // This request cannot carry a capability.
        if !req.export.is_server() && self.rights(&req.export).capabilities {
            return Err(Errno::EACCES);
        }
        let end = request.fm_start.saturating_add(request.fm_length);
        // Data in the caches of other clients has no extents yet. The lock makes these clients
        // write it back.
        let _lock = match oa.o_valid & OBD_MD_FLFLAGS != 0 && oa.o_flags & OBD_FL_SRVLOCK != 0 {
            true => {
                let range = Policy::extent(request.fm_start, end);
                let client = Some(&*req.export);
                Some(
                    self.locks
                        .lock(client, oa.o_oi.res_id(), LockMode::Pr, range)
                        .await?,
                )
            }
            false => None,
        };
        let mapped = self.map_extents(fid, request.fm_start, end, request.fm_extent_count);
        let (count, extents) = mapped
            .await
            .map_err(|e| self.store_error("map extents", fid, &e))?;
        let map = Fiemap {
            fm_mapped_extents: count,
            ..request
        };
        let mut out = map.to_bytes().to_vec();
        for extent in &extents {
            out.extend_from_slice(&extent.to_bytes());
        }
        // Clients copy as many extents as they requested, so the reply must have that length.
        out.resize(
            Fiemap::SIZE + request.fm_extent_count as usize * FiemapExtent::SIZE,
            0,
        );
        Ok(Reply::new(vec![out.into()]))
    }

    /// The number of extents of an object between the offsets `start` and `end` (exclusive), and
    /// the extents: at most `max`. If `max` is 0, counts all and lists none.
    async fn map_extents(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        max: u32,
    ) -> Result<(u32, Vec<FiemapExtent>), OsdError> {
        let block = 1 << self.offer.block_bits;
        let (mut count, mut extents) = (0, Vec::new());
        let mut next = self.find(fid, start, Seek::Data).await?;
        while let Some(from) = next.filter(|from| *from < end && (max == 0 || count < max)) {
            let hole = self.find(fid, from, Seek::Hole).await?;
            // If no hole follows `from`, another request has removed the data meanwhile.
            let Some(to) = hole.filter(|to| *to > from) else {
                break;
            };
            next = self.find(fid, to, Seek::Data).await?;
            count += 1;
            if max > 0 {
                let end = to.next_multiple_of(block).min(next.unwrap_or(u64::MAX));
                let last = if next.is_none() { FIEMAP_EXTENT_LAST } else { 0 };
                extents.push(FiemapExtent {
                    fe_logical: from,
                    fe_length: end - from,
                    fe_flags: FIEMAP_EXTENT_UNKNOWN | last,
                    ..FiemapExtent::default()
                });
            }
        }
        Ok((count, extents))
    }

    /// The offset of the next data or hole at or after `offset`; `None` if there is none.
    async fn find(&self, fid: Fid, offset: u64, kind: Seek) -> Result<Option<u64>, OsdError> {
        match self.objects.seek(fid, offset, kind).await {
            Ok(found) => Ok(Some(found)),
            Err(OsdError::NotFound) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
