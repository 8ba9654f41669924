//! The getxattr intent: all extended attributes that a client may cache, with a lock on them.

use bytes::{BufMut, Bytes, BytesMut};
use ldlm::LockMode;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{Errno, MdtBody, OBD_MD_FLXATTR, WireStruct};

use super::IntentResult;
use crate::{locks, namespace::xattr, target::Mdt};

impl Mdt {
    pub(super) async fn intent_getxattr(
        &self,
        req: &ServerRequest,
        cookie: u64,
    ) -> Result<IntentResult, Errno> {
        let request: MdtBody = req.get(bufs::INTENT_BODY)?;
        let fid = request.mbo_fid1;
        let mut out = IntentResult {
            bufs: vec![MdtBody::default().to_bytes()],
            ..IntentResult::default()
        };
        if let Err(e) = self.store.inode(fid).await {
            out.errno = Some(e);
            return Ok(out);
        }
        let server = self.locks.server();
        let lock = server
            .grant_to(&req.export, cookie, fid.res_id(), LockMode::Pr, locks::XATTR, 0)
            .await?;
        match xattr::cacheable_xattrs(&self.store, fid).await {
            Ok(all) => {
                out.bufs = pack(&all);
                out.lock = lock;
            }
            Err(e) => {
                server.cancel(&req.export, &[lock.handle]);
                out.errno = Some(e);
            }
        }
        Ok(out)
    }
}

/// Packs attributes into the reply's buffers: body, empty layout, empty ACL, names, values, value
/// lengths.
fn pack(all: &[(Bytes, Bytes)]) -> Vec<Bytes> {
    let (mut names, mut values, mut lens) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    for (name, value) in all {
        names.put_slice(name);
        names.put_u8(0);
        values.put_slice(value);
        lens.put_u32_le(value.len() as u32);
    }
    let body = MdtBody {
        mbo_valid: OBD_MD_FLXATTR,
        mbo_eadatasize: names.len() as u32,
        mbo_aclsize: values.len() as u32,
        mbo_max_mdsize: all.len() as u32,
        ..MdtBody::default()
    };
    vec![
        body.to_bytes(),
        Bytes::new(),
        Bytes::new(),
        names.freeze(),
        values.freeze(),
        lens.freeze(),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::pack;
    use wire::{MdtBody, WireStruct};

    #[test]
    fn names_values_and_lengths_are_packed_consistently() {
        let all = [
            ("user.foo".into(), "bar".into()),
            ("trusted.t".into(), "12".into()),
        ];
        let bufs = pack(&all);
        let body = MdtBody::from_bytes(&bufs[0]).unwrap();
        assert_eq!(
            (body.mbo_eadatasize, body.mbo_aclsize, body.mbo_max_mdsize),
            (19, 5, 2)
        );
        assert_eq!(&bufs[3][..], b"user.foo\0trusted.t\0");
        assert_eq!(&bufs[4][..], b"bar12");
        assert_eq!(&bufs[5][..], [3, 0, 0, 0, 2, 0, 0, 0]);
    }
}
