//! Which file an object belongs to (`lfs fid2path` of an object).

use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{Errno, Fid, GetinfoFid2path, WireStruct};

use crate::{Ost, attr};

/// Where the value begins in the key's buffer.
const KEY_SIZE: usize = 16;

impl Ost {
    /// `OST_GET_INFO` of `fid2path`: the same value, with the FID of the object's file. `ENODATA`: nobody has written to the
    /// object, so it does not know its file.
    pub(crate) async fn file_of(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let value = req.buf(bufs::GET_INFO_KEY).get(KEY_SIZE..).ok_or(Errno::EINVAL)?;
        let mut gf = GetinfoFid2path::from_bytes(value)?;
        let object = gf.gf_fid;
        if !self.sequences.is_made(&object) {
            return Err(Errno::ENOENT);
        }
        let attr = attr::of(&*self.objects, &self.sequences, object)
            .await
            .map_err(|e| self.failed("attributes", object, &e))?;
        let file = attr.map_or(Fid::ZERO, |attr| attr.parent);
        if file.is_zero() {
            return Err(Errno::ENODATA);
        }
        // The parent's version is the object's place in the layout.
        gf.gf_fid = Fid::new(file.f_seq, file.f_oid, 0);
        Ok(Reply::new(vec![gf.to_bytes()]))
    }
}
