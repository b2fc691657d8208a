"""MLA decode for sm_100a and sm_103a: a warp-specialised kernel family, and its combine kernel."""
