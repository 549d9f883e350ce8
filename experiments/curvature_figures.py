def save(f,p): pass
