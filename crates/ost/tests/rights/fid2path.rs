//! `OST_GET_INFO` with the key `fid2path`: the file of an object.

use bytes::Bytes;
use wire::{Errno, Fid, GetinfoFid2path, OST_GET_INFO, WireStruct};

use crate::{
    fixture::{BrwOptions, Client},
    with_object,
};

/// Requests the file of an object.
async fn fid2path(client: &Client, object: Fid) -> Result<Fid, Errno> {
    let request = GetinfoFid2path {
        gf_fid: object,
        ..GetinfoFid2path::default()
    };
    let mut key = b"fid2path\0\0\0\0\0\0\0\0".to_vec();
    key.extend_from_slice(&request.to_bytes());
    let reply_size = Bytes::copy_from_slice(&(GetinfoFid2path::SIZE as u32).to_le_bytes());
    let reply = client.call(OST_GET_INFO, vec![key.into(), reply_size]).await;
    Ok(reply.map_err(|e| e.errno())?.get::<GetinfoFid2path>(1)?.gf_fid)
}

#[tokio::test]
async fn fid2path_finds_the_file_after_the_first_write() {
    let (_node, _ost, _osp, client, object) = with_object().await;
    assert_eq!(fid2path(&client, object).await, Err(Errno::ENODATA));
    let file = Fid::new(0x2_0000_0401, 2, 0);
    let options = BrwOptions {
        parent: Some(file),
        ..BrwOptions::default()
    };
    client
        .write_with(object, &[(0, Bytes::from_static(b"x"))], options)
        .await;
    assert_eq!(fid2path(&client, object).await, Ok(file));
    let never_created = Fid::new(object.f_seq, 9999, 0);
    assert_eq!(fid2path(&client, never_created).await, Err(Errno::ENOENT));
    assert_eq!(fid2path(&client, file).await, Err(Errno::ENOENT));
    let truncated = client
        .call(OST_GET_INFO, vec![Bytes::from_static(b"fid2path\0")])
        .await;
    assert_eq!(truncated.map_err(|e| e.errno()).err(), Some(Errno::EINVAL));
}
