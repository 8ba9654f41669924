//! The layouts of files: from the cache under a LAYOUT lock, else by an intent.

use crate::client::Client;
use crate::layout::FileLayout;
use crate::mdc::IntentRequest;
use bytes::Bytes;
use ldlm::LockMode;
use std::ops::Range;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, IT_LAYOUT, LAYOUT_INTENT_ACCESS, LAYOUT_INTENT_WRITE, LayoutIntent, LuExtent,
    MDS_INODELOCK_LAYOUT, OBD_CONNECT_LAYOUTLOCK, WireStruct,
};

impl Client {
    /// A regular file's layout, if it is cached under a LAYOUT lock.
    pub(crate) async fn cached_layout(&self, fid: Fid) -> Result<Option<Arc<FileLayout>>, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let cached = || {
            let _held = mdc.find(fid, LockMode::Cr, MDS_INODELOCK_LAYOUT)?;
            self.inodes.layout(fid)
        };
        Ok(cached())
    }

    /// A regular file's layout: cached under a LAYOUT lock, or requested.
    pub(crate) async fn layout(&self, fid: Fid) -> Result<Arc<FileLayout>, Errno> {
        match self.cached_layout(fid).await? {
            Some(layout) => Ok(layout),
            None => {
                let intent = LayoutIntent {
                    lai_opc: LAYOUT_INTENT_ACCESS,
                    ..LayoutIntent::default()
                };
                self.request_layout(fid, LockMode::Cr, intent).await
            }
        }
    }

    /// Has the metadata target create the missing objects of a range of a file with a composite
    /// layout. The caller holds no extent locks: the target revokes the layout lock of each client,
    /// and this client's answer waits for its write-back.
    pub(crate) async fn create_objects(&self, fid: Fid, range: Range<u64>) -> Result<(), Errno> {
        // Without layout locks a descriptor keeps its layout, so its caller would ask for ever.
        let mdc = self.lmv.mdc_of(fid).await?;
        if !mdc.import.has(OBD_CONNECT_LAYOUTLOCK) {
            return Err(Errno::EOPNOTSUPP);
        }
        let intent = LayoutIntent {
            lai_opc: LAYOUT_INTENT_WRITE,
            lai_extent: LuExtent {
                e_start: range.start,
                e_end: range.end,
            },
            ..LayoutIntent::default()
        };
        // As in Lustre's client, the request is for an EX lock. The target grants a CR lock.
        let layout = self.request_layout(fid, LockMode::Ex, intent).await?;
        if !layout.has_objects(range.clone()) {
            lnet::warn_rate_limited!(%fid, ?range, "the MDT created no objects for a write to this range of the file: the write fails");
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Requests a file's layout with a lock on it.
    async fn request_layout(
        &self,
        fid: Fid,
        mode: LockMode,
        intent: LayoutIntent,
    ) -> Result<Arc<FileLayout>, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let bufs = vec![intent.to_bytes(), Bytes::new()];
        let request = IntentRequest::new(fid, mode, MDS_INODELOCK_LAYOUT, IT_LAYOUT, bufs);
        let reply = mdc.intent(request).await?;
        reply.status?;
        let layout = Arc::new(FileLayout::parse(reply.reply.bytes(bufs::ENQUEUE_LVB))?);
        if let Some(lock) = &reply.lock
            && lock.info().policy.bits() & MDS_INODELOCK_LAYOUT != 0
        {
            self.inodes.entry(fid).state.lock().layout = Some(layout.clone());
        }
        Ok(layout)
    }
}
