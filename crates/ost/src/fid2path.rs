//! `OST_GET_INFO` with the key `fid2path`: the file of an object, for `lfs fid2path`.

use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{Errno, Fid, GetinfoFid2path, WireStruct};

use crate::{Ost, attr};

/// The key fills this many bytes of its buffer; the value follows.
const KEY_SIZE: usize = 16;

impl Ost {
    /// Replies with the request's value, its FID replaced by the FID of the object's file.
    ///
    /// # Errors
    ///
    /// `ENODATA` if the object does not record its file, as before its first write; `ENOENT` if the
    /// object was never created; `EINVAL` if the value is missing.
    pub(crate) async fn fid2path(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let value = req.buf(bufs::GET_INFO_KEY).get(KEY_SIZE..).ok_or(Errno::EINVAL)?;
        let mut info = GetinfoFid2path::from_bytes(value)?;
        let object = info.gf_fid;
        if !self.sequences.is_created(&object) {
            return Err(Errno::ENOENT);
        }
        let attr = attr::load(&*self.objects, &self.sequences, object)
            .await
            .map_err(|e| self.store_error("read attributes", object, &e))?;
        let file = attr.map_or(Fid::ZERO, |attr| attr.parent);
        if file.is_zero() {
            return Err(Errno::ENODATA);
        }
        // The parent's `f_ver` is the stripe index.
        info.gf_fid = Fid::new(file.f_seq, file.f_oid, 0);
        Ok(Reply::new(vec![info.to_bytes()]))
    }
}
