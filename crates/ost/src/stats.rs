//! The operations that `obdfilter.*.stats` counts. A failed request does not count.

use params::Operations;
use wire::{
    OST_CREATE, OST_DESTROY, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_PUNCH, OST_READ, OST_SET_INFO,
    OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE,
};

/// Lustre's names of operations, in the order of its `stats`.
pub(crate) const OPERATIONS: Operations = &[
    ("read_bytes", "bytes"),
    ("write_bytes", "bytes"),
    ("read", "usecs"),
    ("write", "usecs"),
    ("getattr", "usecs"),
    ("setattr", "usecs"),
    ("punch", "usecs"),
    ("sync", "usecs"),
    ("destroy", "usecs"),
    ("create", "usecs"),
    ("statfs", "usecs"),
    ("get_info", "usecs"),
    ("set_info", "usecs"),
    ("prealloc", "usecs"),
];

/// Index of the counter of bytes read.
pub(crate) const READ_BYTES: usize = 0;
/// Index of the counter of bytes written.
pub(crate) const WRITE_BYTES: usize = 1;

/// The operation that a request counts as, if any: an index of [`OPERATIONS`].
pub(crate) fn operation(opc: u32) -> Option<usize> {
    match opc {
        OST_READ => Some(2),
        OST_WRITE => Some(3),
        OST_GETATTR => Some(4),
        OST_SETATTR => Some(5),
        OST_PUNCH => Some(6),
        OST_SYNC => Some(7),
        OST_DESTROY => Some(8),
        OST_CREATE => Some(9),
        OST_STATFS => Some(10),
        OST_GET_INFO => Some(11),
        OST_SET_INFO => Some(12),
        OST_FALLOCATE => Some(13),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{OPERATIONS, READ_BYTES, WRITE_BYTES, operation};
    use wire::format::opcode_name;

    #[test]
    fn operations_have_the_names_of_their_requests() {
        assert_eq!(OPERATIONS[READ_BYTES].0, "read_bytes");
        assert_eq!(OPERATIONS[WRITE_BYTES].0, "write_bytes");
        let counted: Vec<u32> = (0..100).filter(|opc| operation(*opc).is_some()).collect();
        assert_eq!(counted.len(), OPERATIONS.len() - 2);
        for opc in counted {
            let name = operation(opc).map_or("", |index| OPERATIONS[index].0);
            let request = opcode_name(opc).unwrap_or_default().to_lowercase();
            assert!(
                request == format!("ost_{name}") || (request.as_str(), name) == ("ost_fallocate", "prealloc"),
                "{request} counts as {name}"
            );
        }
    }
}
