"""Tables of scores and files of claims, as people bring them."""
