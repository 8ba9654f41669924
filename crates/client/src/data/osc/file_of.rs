//! Query for the file of an object.

use super::Osc;
use crate::pack;
use bytes::Bytes;
use rpc::Request;
use wire::format::bufs;
use wire::{Errno, Fid, GetinfoFid2path, OST_GET_INFO, WireStruct};

impl Osc {
    /// The file of an object. `ENODATA`: the object was never written, so the OST does not know the
    /// file.
    pub(in crate::data) async fn file_of(&self, object: Fid) -> Result<Fid, Errno> {
        let query = GetinfoFid2path {
            gf_fid: object,
            ..GetinfoFid2path::default()
        };
        let reply_space = (GetinfoFid2path::SIZE as u32).to_le_bytes();
        let bufs = vec![
            pack::fid2path_key(&query, &[]),
            Bytes::copy_from_slice(&reply_space),
        ];
        let reply = self.call(Request::new(OST_GET_INFO, bufs)).await?;
        Ok(reply.get::<GetinfoFid2path>(bufs::GET_INFO_VALUE)?.gf_fid)
    }
}
