//! What a target stores: a transactional index (metadata) and objects (data).
