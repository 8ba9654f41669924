//! Changes of an object's size and space. Also the search for data and holes.

use super::Object;
use crate::data::brw;
use bytes::Bytes;
use ldlm::LockRef;
use rpc::Request;
use std::ops::Range;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, HasTimes, OBD_CONNECT2_LSEEK, OBD_FL_SRVLOCK, OBD_MD_FLBLOCKS, OBD_MD_FLCTIME, OBD_MD_FLFLAGS,
    OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_FALLOCATE, OST_PUNCH, OST_SEEK, Obdo, OstBody, Time,
    Times, WireStruct,
};

/// The `whence` of lseek(2), in OST_SEEK.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Object {
    /// Truncates the object to `size`, or extends it with a hole. `lock` is a PW lock on everything
    /// from `size` on.
    pub(in crate::data) async fn truncate(self: &Arc<Self>, size: u64, lock: &LockRef) -> Result<(), Errno> {
        let epoch = self.eviction_epoch(lock)?;
        self.forget(size..u64::MAX);
        // In-flight writes must arrive before the truncate.
        self.flush(size..u64::MAX).await;
        let mut oa = brw::obdo(self.id());
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        oa.o_size = size;
        oa.o_blocks = OBD_OBJECT_EOF;
        let now = self.set_change_time(&mut oa);
        let punch = Request::new(OST_PUNCH, vec![OstBody { oa }.to_bytes(), Bytes::new()]);
        let oa = self
            .call_under(epoch, punch)
            .await?
            .get::<OstBody>(bufs::OST_BODY)?
            .oa;
        let mut state = self.state.lock();
        let freed = state.discard_changed_at_server(size..u64::MAX);
        if lock.is_valid() {
            state.attr.size = size;
            if oa.o_valid & OBD_MD_FLBLOCKS != 0 {
                state.attr.blocks = oa.o_blocks;
            }
            state.set_change_times(now);
        }
        drop(state);
        self.osc.budget().unreserve(freed);
        Ok(())
    }

    /// Puts the time of a content change into a request: now, but not before the last change.
    fn set_change_time(&self, oa: &mut Obdo) -> Time {
        let now = self.osc.now().max(self.state.lock().attr.times.ctime);
        oa.o_valid |= OBD_MD_FLMTIME | OBD_MD_FLCTIME;
        oa.set_times(Times {
            mtime: now,
            ctime: now,
            ..Times::default()
        });
        now
    }

    /// Allocates, punches or zeroes a range of the object; `mode` has the bits of fallocate(2).
    /// `lock` is a PW lock on the range. The caller excludes other writes of this mount.
    pub(in crate::data) async fn fallocate(
        self: &Arc<Self>,
        mode: u32,
        range: Range<u64>,
        keeps_size: bool,
        lock: &LockRef,
    ) -> Result<(), Errno> {
        let epoch = self.eviction_epoch(lock)?;
        self.flush_and_forget(range.clone()).await;
        let mut oa = brw::obdo(self.id());
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        oa.o_size = range.start;
        oa.o_blocks = range.end;
        oa.o_nlink = mode;
        let now = self.set_change_time(&mut oa);
        let allocate = Request::new(OST_FALLOCATE, vec![OstBody { oa }.to_bytes(), Bytes::new()]);
        let oa = self
            .call_under(epoch, allocate)
            .await?
            .get::<OstBody>(bufs::OST_BODY)?
            .oa;
        let mut state = self.state.lock();
        let freed = state.discard_changed_at_server(range.clone());
        if lock.is_valid() {
            if !keeps_size {
                state.attr.size = state.attr.size.max(range.end);
            }
            if oa.o_valid & OBD_MD_FLBLOCKS != 0 {
                state.attr.blocks = oa.o_blocks;
            }
            state.set_change_times(now);
        }
        drop(state);
        self.osc.budget().unreserve(freed);
        Ok(())
    }

    /// The next data or hole at or after `offset` of the object. `None`: no data or hole follows.
    /// For a server without OST_SEEK (before 2.14), everything is data.
    pub(in crate::data) async fn seek(
        self: &Arc<Self>,
        offset: u64,
        hole: bool,
    ) -> Result<Option<u64>, Errno> {
        if !self.osc.import().has2(OBD_CONNECT2_LSEEK) {
            return Ok((!hole).then_some(offset));
        }
        self.flush(0..u64::MAX).await;
        let mut oa = brw::obdo(self.id());
        // The server takes the lock, which makes other clients write back their dirty data.
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLFLAGS;
        oa.o_flags = OBD_FL_SRVLOCK;
        oa.o_size = offset;
        oa.o_mode = if hole { SEEK_HOLE } else { SEEK_DATA };
        match self
            .call(Request::new(
                OST_SEEK,
                vec![OstBody { oa }.to_bytes(), Bytes::new()],
            ))
            .await
        {
            Ok(reply) => {
                let found_offset = reply.get::<OstBody>(bufs::OST_BODY)?.oa.o_size;
                Ok((found_offset != u64::MAX).then_some(found_offset))
            }
            Err(error) if error.errno() == Errno::ENXIO => Ok(None),
            Err(error) => Err(error.errno()),
        }
    }
}
